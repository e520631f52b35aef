// The sum of the same elements of every rank.
#pragma once

#include "kernels/cpu/isa/rank_sum.h"

namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE {
namespace {

template <DType kType, int kRanks>
void rank_range_of(const char* const* sources, int ranks, char* output, int64_t offset, int64_t end,
                   bool stream) {
  // A local copy of the addresses cannot alias the output, so they stay in registers.
  const char* local[kRanks > 0 ? kRanks : 1];
  for (int rank = 0; rank < kRanks; ++rank) local[rank] = sources[rank];
  const RankSumKernel<kType, kRanks, NothingAhead> kernel{
      kRanks > 0 ? local : sources, ranks, output, {}};
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
