#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/isa/kernel_table.h"

// Vectors of 16 floats. A Pair holds 32 consecutive elements, either in order (first 16, last 16)
// or as even and odd elements: bfloat16 splits into the latter with one shift and one mask.
// Compiled twice: without AVX512_BF16, and with it for a rounding of half as many instructions,
// which shows (8 to 10 % of a reduce in the caches) where a neighbour shares the processor's core.
namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE {
namespace {

using Floats = __m512;
constexpr int kWidth = 16;
constexpr int kStreamAlignment = 64;
constexpr int kPanelPairs = 4;  // see kPanelBlocks

struct Pair {
  Floats first;
  Floats second;
};

SYMMOE_INLINE Floats splat(float value) { return _mm512_set1_ps(value); }
SYMMOE_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
SYMMOE_INLINE Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
SYMMOE_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }

SYMMOE_INLINE Pair load_bfloat16(const char* from) {  // even, odd
  const __m512i bits = _mm512_loadu_si512(from);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-0x10000)))};
}
SYMMOE_INLINE Pair load_float16(const char* from) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))),
          _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32)))};
}
SYMMOE_INLINE Pair load_float32(const char* from) {
  return {_mm512_loadu_ps(from), _mm512_loadu_ps(from + 64)};
}

SYMMOE_INLINE Pair even_odd_of(Pair in_order) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return {_mm512_permutex2var_ps(in_order.first, even, in_order.second),
          _mm512_permutex2var_ps(in_order.first, odd, in_order.second)};
}
SYMMOE_INLINE Pair in_order_of(Pair even_odd) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high =
      _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  return {_mm512_permutex2var_ps(even_odd.first, low, even_odd.second),
          _mm512_permutex2var_ps(even_odd.first, high, even_odd.second)};
}

// The upper half of each lane is the value rounded to bfloat16.
SYMMOE_INLINE __m512i round_to_upper_half(Floats value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), is_odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fff0000));
}

template <bool kStream>
SYMMOE_INLINE void store_line(char* to, __m512i bits) {
  if constexpr (kStream) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bits);
  } else {
    _mm512_storeu_si512(to, bits);
  }
}
template <bool kStream>
SYMMOE_INLINE void store_bfloat16(char* to, Pair even_odd) {
#if defined(__AVX512BF16__)
  // The instruction flushes subnormals and keeps payloads of NaNs: rare, and rounded below then.
  constexpr int kSubnormalOrNan = 0x20 | 0x80 | 0x01;
  const __mmask16 rare_even = _mm512_fpclass_ps_mask(even_odd.first, kSubnormalOrNan);
  const __mmask16 rare_odd = _mm512_fpclass_ps_mask(even_odd.second, kSubnormalOrNan);
  if (__builtin_expect(_kortestz_mask16_u8(rare_even, rare_odd), 1)) {
    // Evens in the lower half of the register, odds in the upper one.
    const __m512i halves =
        reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(even_odd.second, even_odd.first));
    const __m512i interleave =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    store_line<kStream>(to, _mm512_permutexvar_epi16(interleave, halves));
    return;
  }
#endif
  const __m512i even = _mm512_srli_epi32(round_to_upper_half(even_odd.first), 16);
  const __m512i odd = round_to_upper_half(even_odd.second);
  store_line<kStream>(to, _mm512_mask_blend_epi16(0xaaaaaaaau, even, odd));
}
template <bool kStream>
SYMMOE_INLINE void store_float16(char* to, Pair in_order) {
  const __m256i low = _mm512_cvtps_ph(in_order.first, _MM_FROUND_TO_NEAREST_INT);
  const __m256i high = _mm512_cvtps_ph(in_order.second, _MM_FROUND_TO_NEAREST_INT);
  store_line<kStream>(to, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
}
template <bool kStream>
SYMMOE_INLINE void store_float32(char* to, Pair in_order) {
  store_line<kStream>(to, _mm512_castps_si512(in_order.first));
  store_line<kStream>(to + 64, _mm512_castps_si512(in_order.second));
}

// By magnitude, as larger integers; without sign.
SYMMOE_INLINE Floats larger_magnitude(Floats magnitude, Floats x) {
  const __m512i bits = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
  return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(magnitude), bits));
}

// Numbers of at most 127.
SYMMOE_INLINE void store_int8(char* to, Pair in_order) {
  auto* const lines = reinterpret_cast<__m128i*>(to);
  _mm_storeu_si128(lines, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(in_order.first)));
  _mm_storeu_si128(lines + 1, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(in_order.second)));
}

// To float8_e4m3fn, numbers of at most 448. See vec_plain.h.
SYMMOE_INLINE __m128i float8_of(Floats value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_add_epi32(_mm512_add_epi32(magnitude, _mm512_set1_epi32(0x7ffff)), is_odd);
  const __m512i normal =
      _mm512_sub_epi32(_mm512_srli_epi32(rounded, 20), _mm512_set1_epi32(120 << 3));
  const Floats units = _mm512_add_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(0x1p14f));
  const __m512i subnormal =
      _mm512_sub_epi32(_mm512_castps_si512(units), _mm512_castps_si512(_mm512_set1_ps(0x1p14f)));
  const __mmask16 is_small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x3c800000));
  const __m512i code = _mm512_mask_mov_epi32(normal, is_small, subnormal);
  const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
  return _mm512_cvtepi32_epi8(_mm512_or_si512(code, sign));
}
SYMMOE_INLINE void store_float8(char* to, Pair in_order) {
  auto* const lines = reinterpret_cast<__m128i*>(to);
  _mm_storeu_si128(lines, float8_of(in_order.first));
  _mm_storeu_si128(lines + 1, float8_of(in_order.second));
}

SYMMOE_INLINE void finish_stream() { _mm_sfence(); }

}  // namespace
}  // namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE
