// A row as 8-bit numbers with one factor.
#pragma once

#include "kernels/cpu/isa/blocks.h"

namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE {
namespace {

// Bits of the largest magnitude, which as integers have the order of the numbers; a NaN is above
// all.
template <DType kType>
SYMMOE_INLINE uint32_t largest_of(const char* row, int64_t hidden) {
  constexpr int64_t kBytes = kBlock * kSize<kType>;
  Pair largest{splat(0.0f), splat(0.0f)};
  const auto include = [&largest](Pair x) {
    largest = {larger_magnitude(largest.first, x.first),
               larger_magnitude(largest.second, x.second)};
  };
  for (; hidden >= kBlock; hidden -= kBlock, row += kBytes) include(load<kType>(row));
  if (hidden > 0) include(load_part<kType>(row, hidden));
  uint32_t all[kBlock];
  store_float32<false>(reinterpret_cast<char*>(all), largest);
  uint32_t most = 0;
  for (const uint32_t bits : all) most = bits > most ? bits : most;
  return most;
}

template <Quantized kTo>
SYMMOE_INLINE void store_byte(char* to, Pair in_order) {
  if constexpr (kTo == Quantized::kInt8) {
    store_int8(to, in_order);
  } else {
    store_float8(to, in_order);
  }
}

template <DType kType, Quantized kTo>
float quantize_row(const void* from, void* to, int64_t hidden) {
  constexpr float kLargest = kTo == Quantized::kInt8 ? 127.0f : 448.0f;
  constexpr uint32_t kInfinity = 0x7f800000;
  constexpr float kSmallestNormal = 0x1p-126f;
  constexpr int64_t kBytes = kBlock * kSize<kType>;
  const char* row = static_cast<const char*>(from);
  char* output = static_cast<char*>(to);
  const uint32_t bits = largest_of<kType>(row, hidden);
  if (bits >= kInfinity) {
    __builtin_memset(output, 0, static_cast<size_t>(hidden));
    return __builtin_nanf("");
  }
  float scale;
  __builtin_memcpy(&scale, &bits, sizeof scale);
  scale /= kLargest;
  if (scale < kSmallestNormal) scale = kSmallestNormal;
  const Floats inverse = splat(1.0f / scale);
  const auto scaled = [inverse](Pair x) {
    if constexpr (kSplitsEvenOdd<kType>) x = in_order_of(x);
    return Pair{mul(x.first, inverse), mul(x.second, inverse)};
  };
  for (; hidden >= kBlock; hidden -= kBlock, row += kBytes, output += kBlock) {
    store_byte<kTo>(output, scaled(load<kType>(row)));
  }
  if (hidden > 0) {
    char block[kBlock];
    store_byte<kTo>(block, scaled(load_part<kType>(row, hidden)));
    __builtin_memcpy(output, block, static_cast<size_t>(hidden));
  }
  return scale;
}

}  // namespace
}  // namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE
