// Blocks of kBlock elements of any element type, as a Pair of float vectors. For files that define
// SYMMOE_ISA_NAMESPACE and SYMMOE_ISA_VECTORS, the header of their vectors.
#pragma once

#include "base/dtype.h"
#include SYMMOE_ISA_VECTORS

namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE {
namespace {

constexpr int kBlock = 2 * kWidth;  // elements in a Pair

template <DType kType>
constexpr int kSize = kType == DType::kFloat32 ? 4 : 2;

// Blocks per step of a loop: 256 bytes of AVX-512, enough independent loads and sums to keep the
// processor's queues full.
template <DType kType>
constexpr int kPanelBlocks = kSize<kType> == 4 ? (kPanelPairs + 1) / 2 : kPanelPairs;

template <DType kType>
constexpr bool kSplitsEvenOdd = kType == DType::kBFloat16;

template <DType kType>
SYMMOE_INLINE Pair load(const char* from) {
  if constexpr (kType == DType::kBFloat16) {
    return load_bfloat16(from);
  } else if constexpr (kType == DType::kFloat16) {
    return load_float16(from);
  } else {
    return load_float32(from);
  }
}

// Stores a Pair that has the order in which load<kFrom> gives its elements.
template <DType kTo, DType kFrom, bool kStream>
SYMMOE_INLINE void store(char* to, Pair pair) {
  if constexpr (kSplitsEvenOdd<kFrom> && !kSplitsEvenOdd<kTo>) pair = in_order_of(pair);
  if constexpr (!kSplitsEvenOdd<kFrom> && kSplitsEvenOdd<kTo>) pair = even_odd_of(pair);
  if constexpr (kTo == DType::kBFloat16) {
    store_bfloat16<kStream>(to, pair);
  } else if constexpr (kTo == DType::kFloat16) {
    store_float16<kStream>(to, pair);
  } else {
    store_float32<kStream>(to, pair);
  }
}

// The first `count` < kBlock elements; nothing beyond them is touched.
template <DType kType>
SYMMOE_INLINE Pair load_part(const char* from, int64_t count) {
  char block[kBlock * kSize<kType>] = {};
  __builtin_memcpy(block, from, static_cast<size_t>(count) * kSize<kType>);
  return load<kType>(block);
}
template <DType kTo, DType kFrom>
SYMMOE_INLINE void store_part(char* to, Pair pair, int64_t count) {
  char block[kBlock * kSize<kTo>];
  store<kTo, kFrom, false>(block, pair);
  __builtin_memcpy(to, block, static_cast<size_t>(count) * kSize<kTo>);
}

// Elements before the first one that may be stored with kStreamAlignment; -1 if there is none.
template <DType kType>
SYMMOE_INLINE int64_t elements_to_alignment(const char* address) {
  const int64_t bytes =
      static_cast<int64_t>(-reinterpret_cast<uintptr_t>(address) & (kStreamAlignment - 1));
  return bytes % kSize<kType> == 0 ? bytes / kSize<kType> : -1;
}

}  // namespace
}  // namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE
