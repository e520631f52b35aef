#pragma once

#include <cstdint>

#include "kernels/cpu/isa/float16.h"
#include "kernels/cpu/isa/kernel_table.h"

// Vectors of 4 floats in the compiler's own vector language: for every processor it knows. A Pair
// holds 8 consecutive elements, either in order or as even and odd elements (see vec_avx512.h).
namespace symmoe::kernels::plain {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "even elements are in the lower halves");

constexpr int kWidth = 4;
constexpr int kStreamAlignment = 16;
constexpr int kPanelPairs = 1;  // see kPanelBlocks

using Floats = float __attribute__((vector_size(16)));
using Words = uint32_t __attribute__((vector_size(16)));
using Halves = uint16_t __attribute__((vector_size(16)));

struct Pair {
  Floats first;
  Floats second;
};

template <typename Vector>
SYMMOE_INLINE Vector load_vector(const char* from) {
  Vector vector;
  __builtin_memcpy(&vector, from, sizeof vector);
  return vector;
}
template <typename Vector>
SYMMOE_INLINE void store_vector(char* to, Vector vector) {
  __builtin_memcpy(to, &vector, sizeof vector);
}

SYMMOE_INLINE Floats splat(float value) { return Floats{value, value, value, value}; }
SYMMOE_INLINE Floats add(Floats a, Floats b) { return a + b; }
SYMMOE_INLINE Floats mul(Floats a, Floats b) { return a * b; }
// The library's fmaf where the processor has no such instruction: rounded once, like the others.
SYMMOE_INLINE Floats fma(Floats a, Floats b, Floats c) {
  return Floats{__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]),
                __builtin_fmaf(a[2], b[2], c[2]), __builtin_fmaf(a[3], b[3], c[3])};
}

SYMMOE_INLINE Pair load_bfloat16(const char* from) {  // even, odd
  const Words bits = load_vector<Words>(from);
  return {bits_as<Floats>(bits << 16), bits_as<Floats>(bits & 0xffff0000u)};
}
// Not inlined: a call costs little beside the integer arithmetic, and its copies would be many.
__attribute__((noinline)) inline Pair load_float16(const char* from) {
  const Halves bits = load_vector<Halves>(from);
  return {Floats{float_of_float16(bits[0]), float_of_float16(bits[1]), float_of_float16(bits[2]),
                 float_of_float16(bits[3])},
          Floats{float_of_float16(bits[4]), float_of_float16(bits[5]), float_of_float16(bits[6]),
                 float_of_float16(bits[7])}};
}
SYMMOE_INLINE Pair load_float32(const char* from) {
  return {load_vector<Floats>(from), load_vector<Floats>(from + sizeof(Floats))};
}

SYMMOE_INLINE Pair even_odd_of(Pair in_order) {
  const Floats a = in_order.first;
  const Floats b = in_order.second;
  return {Floats{a[0], a[2], b[0], b[2]}, Floats{a[1], a[3], b[1], b[3]}};
}
SYMMOE_INLINE Pair in_order_of(Pair even_odd) {
  const Floats even = even_odd.first;
  const Floats odd = even_odd.second;
  return {Floats{even[0], odd[0], even[1], odd[1]}, Floats{even[2], odd[2], even[3], odd[3]}};
}

// The upper half of each lane is the value rounded to bfloat16.
SYMMOE_INLINE Words round_to_upper_half(Floats value) {
  const Words bits = bits_as<Words>(value);
  const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const Words nan = bits_as<Words>(value != value);
  return (rounded & ~nan) | (nan & 0x7fff0000u);
}

template <bool kStream>
SYMMOE_INLINE void store_bfloat16(char* to, Pair even_odd) {
  store_vector(to, (round_to_upper_half(even_odd.first) >> 16) |
                       (round_to_upper_half(even_odd.second) & 0xffff0000u));
}
__attribute__((noinline)) inline void pack_float16(char* to, Pair in_order) {
  const Floats a = in_order.first;
  const Floats b = in_order.second;
  store_vector(to, Halves{float16_of_float(a[0]), float16_of_float(a[1]), float16_of_float(a[2]),
                          float16_of_float(a[3]), float16_of_float(b[0]), float16_of_float(b[1]),
                          float16_of_float(b[2]), float16_of_float(b[3])});
}
template <bool kStream>
SYMMOE_INLINE void store_float16(char* to, Pair in_order) {
  pack_float16(to, in_order);
}
template <bool kStream>
SYMMOE_INLINE void store_float32(char* to, Pair in_order) {
  store_vector(to, in_order.first);
  store_vector(to + sizeof(Floats), in_order.second);
}

// By magnitude, as larger integers; without sign.
SYMMOE_INLINE Floats larger_magnitude(Floats magnitude, Floats x) {
  const Words best = bits_as<Words>(magnitude);
  const Words bits = bits_as<Words>(x) & 0x7fffffffu;
  const Words is_larger = bits_as<Words>(bits > best);
  return bits_as<Floats>((bits & is_larger) | (best & ~is_larger));
}

SYMMOE_INLINE void store_bytes(char* to, Words first, Words second) {
  const uint8_t bytes[] = {static_cast<uint8_t>(first[0]),  static_cast<uint8_t>(first[1]),
                           static_cast<uint8_t>(first[2]),  static_cast<uint8_t>(first[3]),
                           static_cast<uint8_t>(second[0]), static_cast<uint8_t>(second[1]),
                           static_cast<uint8_t>(second[2]), static_cast<uint8_t>(second[3])};
  __builtin_memcpy(to, bytes, sizeof bytes);
}

// Numbers of at most 127. Added to 1.5 * 2^23, the last place counts ones, and so the sum's
// rounding is the wanted one; its lowest byte is the number, also below zero.
SYMMOE_INLINE void store_int8(char* to, Pair in_order) {
  const Floats ones = splat(0x1.8p23f);
  store_bytes(to, bits_as<Words>(in_order.first + ones), bits_as<Words>(in_order.second + ones));
}

// To float8_e4m3fn, numbers of at most 448: 4 bits of exponent, 127 - 7 = 120 less than a float's,
// and 3 of fraction, so 20 are rounded off. Numbers below 2^-6 are multiples of 2^-9, which the
// last place of 2^14 counts; 8 of them are 2^-6, in code as well.
SYMMOE_INLINE Words float8_of(Floats value) {
  const Words bits = bits_as<Words>(value);
  const Words magnitude = bits & 0x7fffffffu;
  const Words normal = ((magnitude + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - (120u << 3);
  const Floats unit = splat(0x1p14f);
  const Words subnormal = bits_as<Words>(bits_as<Floats>(magnitude) + unit) - bits_as<Words>(unit);
  const Words is_small = bits_as<Words>(magnitude < 0x3c800000u);
  return (subnormal & is_small) | (normal & ~is_small) | ((bits >> 24) & 0x80u);
}
SYMMOE_INLINE void store_float8(char* to, Pair in_order) {
  store_bytes(to, float8_of(in_order.first), float8_of(in_order.second));
}

SYMMOE_INLINE void finish_stream() {}

}  // namespace
}  // namespace symmoe::kernels::plain
