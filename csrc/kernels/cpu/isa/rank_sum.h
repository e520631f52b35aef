// The vector loop of every sum over ranks.
#pragma once

#include "kernels/cpu/isa/blocks.h"

namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE {
namespace {

// For sums whose memory the processor fetches ahead by itself.
struct NothingAhead {
  template <int kBytes>
  SYMMOE_INLINE void fetch(int /*rank*/, int64_t /*offset*/) const {}
  SYMMOE_INLINE int ranks() const { return 0; }
};

// kRanks is the number of sources, or 0 if it is only known at run time. `Ahead` may fetch what
// will be summed next.
template <DType kType, int kRanks, typename Ahead>
struct RankSumKernel {
  const char* const* sources;
  int run_time_ranks;
  char* output;
  Ahead ahead;

  static constexpr int64_t kBytes = kBlock * kSize<kType>;

  template <int kBlocks, bool kStream>
  SYMMOE_INLINE void blocks(int64_t offset) const {
    Pair sum[kBlocks];
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) sum[b] = load<kType>(sources[0] + offset + b * kBytes);
    if (ahead.ranks() > 0) ahead.template fetch<kBlocks * kBytes>(0, offset);
    const int ranks = kRanks > 0 ? kRanks : run_time_ranks;
#pragma GCC unroll 8
    for (int rank = 1; rank < ranks; ++rank) {
#pragma GCC unroll 8
      for (int b = 0; b < kBlocks; ++b) {
        const Pair x = load<kType>(sources[rank] + offset + b * kBytes);
        sum[b] = {add(sum[b].first, x.first), add(sum[b].second, x.second)};
      }
      if (rank < ahead.ranks()) ahead.template fetch<kBlocks * kBytes>(rank, offset);
    }
    for (int rank = ranks; rank < ahead.ranks(); ++rank) {
      ahead.template fetch<kBlocks * kBytes>(rank, offset);
    }
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) {
      store<kType, kType, kStream>(output + offset + b * kBytes, sum[b]);
    }
  }

  void part(int64_t offset, int64_t bytes) const {
    const int64_t count = bytes / kSize<kType>;
    Pair sum = load_part<kType>(sources[0] + offset, count);
    const int ranks = kRanks > 0 ? kRanks : run_time_ranks;
    for (int rank = 1; rank < ranks; ++rank) {
      const Pair x = load_part<kType>(sources[rank] + offset, count);
      sum = {add(sum.first, x.first), add(sum.second, x.second)};
    }
    store_part<kType, kType>(output + offset, sum, count);
  }

  template <bool kStream>
  SYMMOE_INLINE void range(int64_t offset, int64_t end) const {
    for (; offset + kPanelBlocks<kType> * kBytes <= end; offset += kPanelBlocks<kType> * kBytes) {
      blocks<kPanelBlocks<kType>, kStream>(offset);
    }
    for (; offset + kBytes <= end; offset += kBytes) blocks<1, kStream>(offset);
    if (offset < end) part(offset, end - offset);
  }
};

}  // namespace
}  // namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE
