// The sum of one row over some of the ranks, while the rows behind it are on their way.
#pragma once

#include "kernels/cpu/isa/blocks.h"

namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE {
namespace {

// kRanks is the number of sources, or 0 if it is only known at run time.
template <DType kType, int kRanks>
struct RankRowKernel {
  const char* const* sources;
  int run_time_ranks;
  const char* const* ahead;
  int ahead_ranks;
  char* output;

  static constexpr int64_t kBytes = kBlock * kSize<kType>;
  static constexpr int64_t kLine = 64;

  // Of each rank's row ahead, what is as far in as `offset`. The processor's own prefetch begins
  // anew at each row, which is nowhere near the last one of its rank.
  template <int kBlocks>
  SYMMOE_INLINE void prefetch(int rank, int64_t offset) const {
#pragma GCC unroll 8
    for (int64_t at = 0; at < kBlocks * kBytes; at += kLine) {
      __builtin_prefetch(ahead[rank] + offset + at, 0, 3);
    }
  }

  template <int kBlocks, bool kStream>
  SYMMOE_INLINE void blocks(int64_t offset) const {
    Pair sum[kBlocks];
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) sum[b] = load<kType>(sources[0] + offset + b * kBytes);
    if (ahead_ranks > 0) prefetch<kBlocks>(0, offset);
    const int ranks = kRanks > 0 ? kRanks : run_time_ranks;
#pragma GCC unroll 8
    for (int rank = 1; rank < ranks; ++rank) {
#pragma GCC unroll 8
      for (int b = 0; b < kBlocks; ++b) {
        const Pair x = load<kType>(sources[rank] + offset + b * kBytes);
        sum[b] = {add(sum[b].first, x.first), add(sum[b].second, x.second)};
      }
      if (rank < ahead_ranks) prefetch<kBlocks>(rank, offset);
    }
    for (int rank = ranks; rank < ahead_ranks; ++rank) prefetch<kBlocks>(rank, offset);
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

template <DType kType, int kRanks>
void rank_row_of(const RankRow& row, int64_t bytes, bool stream) {
  const RankRowKernel<kType, kRanks> kernel{reinterpret_cast<const char* const*>(row.sources),
                                            row.ranks,
                                            reinterpret_cast<const char* const*>(row.ahead),
                                            row.ahead_ranks, static_cast<char*>(row.output)};
  const int64_t head = elements_to_alignment<kType>(kernel.output) * kSize<kType>;
  if (!stream || head < 0 || head + RankRowKernel<kType, kRanks>::kBytes > bytes) {
    kernel.template range<false>(0, bytes);
    return;
  }
  if (head > 0) kernel.template range<false>(0, head);
  kernel.template range<true>(head, bytes);
}

template <DType kType>
void rank_row(const RankRow& row, int64_t hidden, bool stream) {
  const int64_t bytes = hidden * kSize<kType>;
  switch (row.ranks) {
    case 1:
      return rank_row_of<kType, 1>(row, bytes, stream);
    case 2:
      return rank_row_of<kType, 2>(row, bytes, stream);
    case 3:
      return rank_row_of<kType, 3>(row, bytes, stream);
    case 4:
      return rank_row_of<kType, 4>(row, bytes, stream);
    default:
      return rank_row_of<kType, 0>(row, bytes, stream);
  }
}

}  // namespace
}  // namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE
