// The sum of one row over some of the ranks, while the rows behind it are on their way.
#pragma once

#include "kernels/cpu/isa/rank_sum.h"

namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE {
namespace {

// Of each rank's row ahead, what is as far in as the sum is. The processor's own prefetch begins
// anew at each row, which is nowhere near the last one of its rank. To the second-level cache: into
// the first level, rows of one rank took 1.5 times as long (Zen 4).
struct RowAhead {
  const char* const* rows;
  int count;

  template <int kBytes>
  SYMMOE_INLINE void fetch(int rank, int64_t offset) const {
    constexpr int kLine = 64;
#pragma GCC unroll 8
    for (int at = 0; at < kBytes; at += kLine) {
      __builtin_prefetch(rows[rank] + offset + at, 0, 2);
    }
  }
  SYMMOE_INLINE int ranks() const { return count; }
};

template <DType kType, int kRanks>
void rank_row_of(const RankRow& row, int64_t bytes, bool stream) {
  using Kernel = RankSumKernel<kType, kRanks, RowAhead>;
  const RowAhead ahead{reinterpret_cast<const char* const*>(row.ahead), row.ahead_ranks};
  const Kernel kernel{reinterpret_cast<const char* const*>(row.sources), row.ranks,
                      static_cast<char*>(row.output), ahead};
  const int64_t head = elements_to_alignment<kType>(kernel.output) * kSize<kType>;
  if (!stream || head < 0 || head + Kernel::kBytes > bytes) {
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
