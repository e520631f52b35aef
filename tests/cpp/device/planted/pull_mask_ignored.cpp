// The bug: rows that nobody wrote are added.

#include "kernels/device/columns.h"
#include "kernels/device/peer_call.h"
#include "kernels/device/peer_grid.h"

#ifdef SYMMOE_PLANT
namespace symmoe::kernels::SYMMOE_PLATFORM::dev {
template <typename Mask>
Mask both_ranks(const void*) {
  return Mask{3};
}
}  // namespace symmoe::kernels::SYMMOE_PLATFORM::dev
#define load both_ranks
#endif

#include "kernels/device/pull_share.h"

#undef load

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
