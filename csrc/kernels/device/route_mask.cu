// Which ranks hold one of a row's experts: a bit each, computed once per batch from the ids that
// all ranks have. One thread per row. With a hash of it all, by which ranks find out that theirs
// differ; padding rows count in it as rows of nobody, whatever their ids.

#include "kernels/device/dev.h"
#include "kernels/device/expert_rank.h"
#include "kernels/device/grid.h"
#include "kernels/device/launch.h"
#include "kernels/device/mixed.h"
#include "kernels/device/report.h"
#include "kernels/device/row_shares.h"

namespace symmoe::kernels {
namespace SYMMOE_PLATFORM {

// Few rows per block, so that a small batch, too, is spread over the device.
constexpr int kMaskThreads = 64;

struct Partial {
  uint64_t hash[kMaskThreads];
};

SYMMOE_DEVICE uint64_t mask_of(const RouteMaskLaunch& problem, int64_t row) {
  uint64_t mask = 0;
  for (int64_t slot = 0; slot < problem.slots; ++slot) {
    const int64_t expert =
        integer_at(problem.ids, problem.ids_are_64bit, row * problem.slots + slot);
    const int32_t rank = rank_of(problem.expert_to_rank, problem.experts, expert);
    if (rank >= 0 && rank < problem.world) {
      mask |= uint64_t{1} << rank;
    } else if (rank != kNobody) {
      report(problem.fault, Fault::kExpertRankWrong, expert, problem.world, rank);
    }
  }
  return mask;
}

// Called by one thread of each block. The last block to come leaves the hash of all.
SYMMOE_DEVICE void add_hash(MaskHash* hash, uint64_t of_block) {
  dev::add_to(&hash->sum, of_block);
  if (dev::count_in_order(&hash->blocks_done) != dev::blocks() - 1) return;
  dev::store(&hash->value, dev::load<uint64_t>(&hash->sum));
  dev::store(&hash->sum, uint64_t{0});
  dev::store(&hash->blocks_done, uint32_t{0});
}

__global__ void __launch_bounds__(kMaskThreads) route_mask(const RouteMaskLaunch problem) {
  SYMMOE_SHARED(Partial, partial);
  SYMMOE_SHARED(ShareTable, shares);
  read_shares(problem.shares, problem.world, nullptr, shares);
  ShareCursor cursor;
  const int64_t threads = int64_t{dev::blocks()} * dev::threads();
  uint64_t hash = 0;
  for (int64_t row = int64_t{dev::block()} * dev::threads() + dev::thread(); row < problem.rows;
       row += threads) {
    const uint64_t mask = cursor.owns(shares, problem.world, row) ? mask_of(problem, row) : 0;
    dev::store(problem.mask + row, mask);
    hash += mixed_at(row, mask);
  }
  partial.hash[dev::thread()] = hash;
  for (unsigned half = kMaskThreads / 2; half > 0; half /= 2) {
    dev::sync_block();
    if (dev::thread() < half) {
      partial.hash[dev::thread()] += partial.hash[dev::thread() + half];
    }
  }
  if (dev::thread() == 0) add_hash(problem.hash, partial.hash[0]);
}

}  // namespace SYMMOE_PLATFORM

// A batch without rows still gets its hash.
int launch_route_mask(const RouteMaskLaunch& problem, int multiprocessors, void* stream) {
  using namespace SYMMOE_PLATFORM;
  const int64_t blocks = std::clamp<int64_t>(divided_up(problem.rows, kMaskThreads), 1,
                                             useful_blocks(multiprocessors, kMaskThreads));
  return dev::launch(route_mask, static_cast<unsigned>(blocks), kMaskThreads, stream, problem);
}

}  // namespace symmoe::kernels
