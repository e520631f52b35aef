// The sum of the same elements of every rank.
#pragma once

#include "kernels/cpu/isa/blocks.h"

namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE {
namespace {

// kRanks is the number of sources, or 0 if it is only known at run time.
template <DType kType, int kRanks>
struct RankRangeKernel {
  const char* const* sources;
  int run_time_ranks;
  char* output;

  template <int kBlocks, bool kStream>
  SYMMOE_INLINE void blocks(int64_t offset) const {
    Pair sum[kBlocks];
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) sum[b] = load<kType>(sources[0] + offset + b * kBytes);
    const int ranks = kRanks > 0 ? kRanks : run_time_ranks;
#pragma GCC unroll 8
    for (int rank = 1; rank < ranks; ++rank) {
#pragma GCC unroll 8
      for (int b = 0; b < kBlocks; ++b) {
        const Pair x = load<kType>(sources[rank] + offset + b * kBytes);
        sum[b] = {add(sum[b].first, x.first), add(sum[b].second, x.second)};
      }
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

  static constexpr int64_t kBytes = kBlock * kSize<kType>;
};

template <DType kType, int kRanks>
void rank_range_of(const char* const* sources, int ranks, char* output, int64_t offset, int64_t end,
                   bool stream) {
  // A local copy of the addresses cannot alias the output, so they stay in registers.
  const char* local[kRanks > 0 ? kRanks : 1];
  for (int rank = 0; rank < kRanks; ++rank) local[rank] = sources[rank];
  const RankRangeKernel<kType, kRanks> kernel{kRanks > 0 ? local : sources, ranks, output};
  int64_t head = elements_to_alignment<kType>(output + offset) * kSize<kType>;
  // Stores that cross lines cost more than the few elements of the head, except in tiny ranges.
  constexpr int64_t kWorthAligning = 4096;
  if (head < 0 || end - offset < kWorthAligning) head = 0;
  const bool aligned = head >= 0 && end - offset >= kWorthAligning &&
                       elements_to_alignment<kType>(output + offset + head) == 0;
  if (head > 0) kernel.template range<false>(offset, offset + head);
  if (stream && aligned) {
    kernel.template range<true>(offset + head, end);
    finish_stream();
  } else {
    kernel.template range<false>(offset + head, end);
  }
}

template <DType kType>
void rank_range(const void* const* sources, int ranks, void* output, int64_t begin, int64_t end,
                bool stream) {
  const char* const* from = reinterpret_cast<const char* const*>(sources);
  char* to = static_cast<char*>(output);
  begin *= kSize<kType>;
  end *= kSize<kType>;
  switch (ranks) {
    case 2:
      return rank_range_of<kType, 2>(from, ranks, to, begin, end, stream);
    case 4:
      return rank_range_of<kType, 4>(from, ranks, to, begin, end, stream);
    case 8:
      return rank_range_of<kType, 8>(from, ranks, to, begin, end, stream);
    default:
      return rank_range_of<kType, 0>(from, ranks, to, begin, end, stream);
  }
}

}  // namespace
}  // namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE
