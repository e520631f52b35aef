#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/isa/kernel_table.h"

// Vectors of 8 floats. A Pair holds 16 consecutive elements, either in order or as even and odd
// elements (see vec_avx512.h).
namespace symmoe::kernels::avx2 {
namespace {

using Floats = __m256;
constexpr int kWidth = 8;
constexpr int kStreamAlignment = 32;
constexpr int kPanelPairs = 4;  // see kPanelBlocks

struct Pair {
  Floats first;
  Floats second;
};

SYMMOE_INLINE Floats splat(float value) { return _mm256_set1_ps(value); }
SYMMOE_INLINE Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
SYMMOE_INLINE Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
SYMMOE_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

SYMMOE_INLINE __m256i load_line(const char* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
SYMMOE_INLINE Pair load_bfloat16(const char* from) {  // even, odd
  const __m256i bits = load_line(from);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(-0x10000)))};
}
SYMMOE_INLINE Pair load_float16(const char* from) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16)))};
}
SYMMOE_INLINE Pair load_float32(const char* from) {
  return {_mm256_castsi256_ps(load_line(from)), _mm256_castsi256_ps(load_line(from + 32))};
}

SYMMOE_INLINE Pair even_odd_of(Pair in_order) {
  // 0 1 2 3 | 8 9 10 11 and 4 5 6 7 | 12 13 14 15, so that one shuffle per lane is enough.
  const Floats low = _mm256_permute2f128_ps(in_order.first, in_order.second, 0x20);
  const Floats high = _mm256_permute2f128_ps(in_order.first, in_order.second, 0x31);
  return {_mm256_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)),
          _mm256_shuffle_ps(low, high, _MM_SHUFFLE(3, 1, 3, 1))};
}
SYMMOE_INLINE Pair in_order_of(Pair even_odd) {
  const Floats low = _mm256_unpacklo_ps(even_odd.first, even_odd.second);
  const Floats high = _mm256_unpackhi_ps(even_odd.first, even_odd.second);
  return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}

// The upper half of each lane is the value rounded to bfloat16.
SYMMOE_INLINE __m256i round_to_upper_half(Floats value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), is_odd);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fff0000), nan);
}

template <bool kStream>
SYMMOE_INLINE void store_line(char* to, __m256i bits) {
  if constexpr (kStream) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bits);
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
  }
}
template <bool kStream>
SYMMOE_INLINE void store_bfloat16(char* to, Pair even_odd) {
  const __m256i even = _mm256_srli_epi32(round_to_upper_half(even_odd.first), 16);
  const __m256i odd = round_to_upper_half(even_odd.second);
  store_line<kStream>(to, _mm256_blend_epi16(even, odd, 0xaa));
}
template <bool kStream>
SYMMOE_INLINE void store_float16(char* to, Pair in_order) {
  const __m128i low = _mm256_cvtps_ph(in_order.first, _MM_FROUND_TO_NEAREST_INT);
  const __m128i high = _mm256_cvtps_ph(in_order.second, _MM_FROUND_TO_NEAREST_INT);
  store_line<kStream>(to, _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
}
template <bool kStream>
SYMMOE_INLINE void store_float32(char* to, Pair in_order) {
  store_line<kStream>(to, _mm256_castps_si256(in_order.first));
  store_line<kStream>(to + 32, _mm256_castps_si256(in_order.second));
}

// By magnitude, as larger integers; without sign.
SYMMOE_INLINE Floats larger_magnitude(Floats magnitude, Floats x) {
  const __m256i bits = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(magnitude), bits));
}

// The lower bytes of 8 + 8 words; as signed numbers they must fit into 16 bits.
SYMMOE_INLINE void store_bytes(char* to, __m256i first, __m256i second) {
  // Packing works in each lane by itself, so the middle quarters come out in the wrong order.
  const __m256i halves = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
  const __m256i bytes = _mm256_and_si256(halves, _mm256_set1_epi16(0xff));
  const __m128i packed =
      _mm_packus_epi16(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
}

// Numbers of at most 127.
SYMMOE_INLINE void store_int8(char* to, Pair in_order) {
  store_bytes(to, _mm256_cvtps_epi32(in_order.first), _mm256_cvtps_epi32(in_order.second));
}

// To float8_e4m3fn, numbers of at most 448. See vec_plain.h.
SYMMOE_INLINE __m256i float8_of(Floats value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(_mm256_add_epi32(magnitude, _mm256_set1_epi32(0x7ffff)), is_odd);
  const __m256i normal =
      _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
  const Floats units = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(0x1p14f));
  const __m256i subnormal =
      _mm256_sub_epi32(_mm256_castps_si256(units), _mm256_castps_si256(_mm256_set1_ps(0x1p14f)));
  const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), magnitude);
  const __m256i code = _mm256_blendv_epi8(normal, subnormal, is_small);
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  return _mm256_or_si256(code, sign);
}
SYMMOE_INLINE void store_float8(char* to, Pair in_order) {
  store_bytes(to, float8_of(in_order.first), float8_of(in_order.second));
}

SYMMOE_INLINE void finish_stream() { _mm_sfence(); }

}  // namespace
}  // namespace symmoe::kernels::avx2
