// The bug: rows that nobody wrote are added.

#include "kernels/device/pull_share.h"

#ifdef SYMMOE_PLANT
namespace symmoe::kernels::SYMMOE_PLATFORM {
inline uint64_t every_rank(const PullLaunch& problem) {
  return ~uint64_t{0} >> (kMaxPeers - problem.peers.world);
}
}  // namespace symmoe::kernels::SYMMOE_PLATFORM
#define ranks_with_row(problem, row) every_rank(problem)
#endif

#include "pulling.h"

// The masks leave out the second rank, whose rows are NaN.
int main() {
  using namespace pulling;
  const std::vector<uint64_t> masks(4, 1);
  const MaskHash hash{};
  const Peers peers(2, 4 * kHidden * 4);
  std::fill_n(reinterpret_cast<float*>(peers.rows(0)), 4 * kHidden, 7.0f);
  std::atomic<int> wrong = 0;
  peers.run([&](int rank) {
    std::vector<float> output(kRows * kHidden);
    PullLaunch launch = peers.pull(rank, DType::kFloat32, kHidden, 1);
    launch.output = output.data();
    launch.shares.begins[1] = kRows;
    launch.shares.counts[0] = launch.shares.counts[1] = kRows;
    launch.mask = masks.data();
    launch.mask_hash = &hash;
    const int status = kernels::launch_pull_reduce(launch, 1, nullptr);
    for (const float sum : output) wrong += sum == 7.0f ? 0 : 1;
    return status;
  });
  std::printf("%d wrong sums\n", wrong.load());
  return wrong.load() == 0 ? 0 : 1;
}
