// The weighted sum of one token's rows when they come from memory.
#pragma once

#include "kernels/cpu/isa/blocks.h"

namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE {
namespace {

// The arithmetic of the sum, one block at a time.
template <DType kIn, bool kWeighted>
struct TopkSum {
  SYMMOE_INLINE static const char* at(const Term& term, int64_t element) {
    return static_cast<const char*>(term.row) + element * kSize<kIn>;
  }
  SYMMOE_INLINE static Pair first(Pair x, Floats weight) {
    if constexpr (kWeighted) {
      return {mul(weight, x.first), mul(weight, x.second)};
    } else {
      return x;
    }
  }
  SYMMOE_INLINE static Pair next(Pair sum, Pair x, Floats weight) {
    if constexpr (kWeighted) {
      return {fma(weight, x.first, sum.first), fma(weight, x.second, sum.second)};
    } else {
      return {add(sum.first, x.first), add(sum.second, x.second)};
    }
  }
};

SYMMOE_INLINE Pair scaled(Pair sum, const float* scale) {
  if (scale == nullptr) return sum;
  const Floats factor = splat(*scale);
  return {mul(sum.first, factor), mul(sum.second, factor)};
}

constexpr int64_t kTile = 4096;  // elements whose fp32 sums take 16 KiB of the first-level cache

constexpr int kLine = 64;

// Rows outermost, so that memory is read in the order in which it lies there; the sums of a tile
// stay in the first-level cache. Two rows ahead are prefetched: reading many rows side by side, or
// leaving the prefetch to the processor, reaches half of the memory's rate. They go to the
// second-level cache: in a first level of 32 KiB they displaced what was being summed, and sums of
// 8 rows took twice as long (Zen 4).
template <DType kIn, DType kOut, bool kWeighted>
struct TopkSequential {
  using Sum = TopkSum<kIn, kWeighted>;
  const Term* terms;
  int64_t count;
  char* output;
  const float* scale;

  template <bool kStream>
  void range(int64_t begin, int64_t end) const {
    if (count == 1) return add_rows<1, true, true, kStream>(0, begin, end, end, nullptr);
    if (count == 2) return add_rows<2, true, true, kStream>(0, begin, end, end, nullptr);
    alignas(64) float sums[kTile];
    for (int64_t tile = begin; tile < end; tile += kTile) {
      const int64_t tile_end = tile + kTile < end ? tile + kTile : end;
      add_rows<1, true, false, false>(0, tile, tile_end, end, sums);
      for (int64_t row = 1; row < count - 1; ++row) {
        add_rows<1, false, false, false>(row, tile, tile_end, end, sums);
      }
      add_rows<1, false, true, kStream>(count - 1, tile, tile_end, end, sums);
    }
  }

 private:
  // What will be needed after `row` and the one behind it: the same tile of a later row, or the
  // next tile, or the next token.
  const char* ahead_of(int64_t row, int64_t begin, int64_t tile_end, int64_t end) const {
    const int64_t later = row + kTermsAhead;
    if (later < count || tile_end == end) return Sum::at(terms[later], later < count ? begin : 0);
    return Sum::at(terms[(later - count) % count], tile_end);
  }

  // Adds kRows rows from `row` on to the sums of the elements [begin, end of tile).
  template <int kRows, bool kStart, bool kFinish, bool kStream>
  void add_rows(int64_t row, int64_t begin, int64_t tile_end, int64_t end, float* sums) const {
    const char* ahead = ahead_of(row, begin, tile_end, end);
    int64_t ahead_bytes = (tile_end - begin) * kSize<kIn>;
    int64_t element = begin;
    for (; element + kPanelBlocks<kIn> * kBlock <= tile_end;
         element += kPanelBlocks<kIn> * kBlock) {
      constexpr int kBytes = kRows * kPanelBlocks<kIn> * kBlock * kSize<kIn>;
      blocks<kRows, kStart, kFinish, kStream, kPanelBlocks<kIn>>(row, element,
                                                                 sums + (element - begin), ahead);
      ahead += kBytes;
      if constexpr (kRows == 2) {
        ahead_bytes -= kBytes;
        if (ahead_bytes <= 0) {  // half way: on to the second row
          ahead = ahead_of(row + 1, begin, tile_end, end);
          ahead_bytes = (tile_end - begin) * kSize<kIn> + kBytes;
        }
      }
    }
    for (; element + kBlock <= tile_end; element += kBlock) {
      blocks<kRows, kStart, kFinish, kStream, 1>(row, element, sums + (element - begin), ahead);
    }
    if (element < tile_end) {
      part<kRows, kStart, kFinish>(row, element, tile_end - element, sums + (element - begin));
    }
  }

  template <int kRows, bool kStart, bool kFinish, bool kStream, int kBlocks>
  SYMMOE_INLINE void blocks(int64_t row, int64_t element, float* sums, const char* ahead) const {
    Pair sum[kBlocks];
    char* sum_bytes = reinterpret_cast<char*>(sums);
    constexpr int64_t kSumBytes = kBlock * sizeof(float);
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) {
      if constexpr (!kStart) sum[b] = load_float32(sum_bytes + b * kSumBytes);
    }
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) {
      const char* from = Sum::at(terms[row + r], element);
      const Floats weight = splat(terms[row + r].weight);
#pragma GCC unroll 8
      for (int b = 0; b < kBlocks; ++b) {
        constexpr int64_t kBytes = kBlock * kSize<kIn>;
        const Pair x = load<kIn>(from + b * kBytes);
        // One line at a time between the loads: a burst would fill the miss queue.
        const int64_t place = (r * kBlocks + b) * kBytes;
        if (place % kLine == 0) __builtin_prefetch(ahead + place, 0, 2);
        if (kBytes > kLine) __builtin_prefetch(ahead + place + kLine, 0, 2);
        sum[b] = kStart && r == 0 ? Sum::first(x, weight) : Sum::next(sum[b], x, weight);
      }
    }
    char* to = output + element * kSize<kOut>;
    constexpr int64_t kOutBytes = kBlock * kSize<kOut>;
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) {
      if constexpr (kFinish) {
        store<kOut, kIn, kStream>(to + b * kOutBytes, scaled(sum[b], scale));
      } else {
        store_float32<false>(sum_bytes + b * kSumBytes, sum[b]);
      }
    }
  }

  // Fewer than kBlock elements; the sums have room for a whole block.
  template <int kRows, bool kStart, bool kFinish>
  void part(int64_t row, int64_t element, int64_t elements, float* sums) const {
    Pair sum = {splat(0.0f), splat(0.0f)};
    if constexpr (!kStart) sum = load_float32(reinterpret_cast<const char*>(sums));
    for (int r = 0; r < kRows; ++r) {
      const Pair x = load_part<kIn>(Sum::at(terms[row + r], element), elements);
      const Floats weight = splat(terms[row + r].weight);
      sum = kStart && r == 0 ? Sum::first(x, weight) : Sum::next(sum, x, weight);
    }
    if constexpr (kFinish) {
      store_part<kOut, kIn>(output + element * kSize<kOut>, scaled(sum, scale), elements);
    } else {
      store_float32<false>(reinterpret_cast<char*>(sums), sum);
    }
  }
};

}  // namespace
}  // namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE
