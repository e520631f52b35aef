// The weighted sum of one token's rows.
#pragma once

#include "kernels/cpu/isa/blocks.h"
#include "kernels/cpu/isa/topk_sequential.h"

namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE {
namespace {

// Slots innermost, sums in registers: the fastest way while the rows are in the caches.
template <DType kIn, DType kOut, bool kWeighted>
struct TopkInCache {
  using Sum = TopkSum<kIn, kWeighted>;
  const Term* terms;
  int64_t count;
  char* output;
  const float* scale;

  template <int kBlocks, bool kStream>
  SYMMOE_INLINE void blocks(int64_t element) const {
    Pair sum[kBlocks];
    const char* from = Sum::at(terms[0], element);
    Floats weight = splat(terms[0].weight);
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) {
      sum[b] = Sum::first(load<kIn>(from + b * kBlock * kSize<kIn>), weight);
    }
    for (int64_t k = 1; k < count; ++k) {
      from = Sum::at(terms[k], element);
      weight = splat(terms[k].weight);
#pragma GCC unroll 8
      for (int b = 0; b < kBlocks; ++b) {
        sum[b] = Sum::next(sum[b], load<kIn>(from + b * kBlock * kSize<kIn>), weight);
      }
    }
    char* to = output + element * kSize<kOut>;
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) {
      store<kOut, kIn, kStream>(to + b * kBlock * kSize<kOut>, scaled(sum[b], scale));
    }
  }

  // Fewer than kBlock elements.
  void part(int64_t element, int64_t elements) const {
    Pair sum =
        Sum::first(load_part<kIn>(Sum::at(terms[0], element), elements), splat(terms[0].weight));
    for (int64_t k = 1; k < count; ++k) {
      sum = Sum::next(sum, load_part<kIn>(Sum::at(terms[k], element), elements),
                      splat(terms[k].weight));
    }
    store_part<kOut, kIn>(output + element * kSize<kOut>, scaled(sum, scale), elements);
  }

  template <bool kStream>
  void range(int64_t element, int64_t end) const {
    for (; element + kPanelBlocks<kIn> * kBlock <= end; element += kPanelBlocks<kIn> * kBlock) {
      blocks<kPanelBlocks<kIn>, kStream>(element);
    }
    for (; element + kBlock <= end; element += kBlock) blocks<1, kStream>(element);
    if (element < end) part(element, end - element);
  }

  // No term: +0, still times the scale.
  void absent(int64_t hidden) const {
    const Pair zero = scaled({splat(0.0f), splat(0.0f)}, scale);
    int64_t element = 0;
    for (; element + kBlock <= hidden; element += kBlock) {
      store<kOut, kIn, false>(output + element * kSize<kOut>, zero);
    }
    if (element < hidden) {
      store_part<kOut, kIn>(output + element * kSize<kOut>, zero, hidden - element);
    }
  }
};

template <DType kIn, DType kOut, bool kWeighted>
void topk_row(const Term* terms, int64_t count, void* output, int64_t hidden, const float* scale,
              TopkStyle style) {
  char* to = static_cast<char*>(output);
  const TopkInCache<kIn, kOut, kWeighted> in_cache{terms, count, to, scale};
  if (count == 0) {
    in_cache.absent(hidden);
    return;
  }
  const int64_t head = elements_to_alignment<kOut>(to);
  const bool stream = style.stream && head >= 0 && head + kBlock <= hidden;
  if (stream && head > 0) in_cache.template range<false>(0, head);
  const int64_t begin = stream ? head : 0;
  if (style.sequential) {
    const TopkSequential<kIn, kOut, kWeighted> sequential{terms, count, to, scale};
    stream ? sequential.template range<true>(begin, hidden)
           : sequential.template range<false>(begin, hidden);
  } else {
    stream ? in_cache.template range<true>(begin, hidden)
           : in_cache.template range<false>(begin, hidden);
  }
  if (stream) finish_stream();
}

}  // namespace
}  // namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE
