#pragma once

#include <cstdint>

#include "kernels/cpu/isa/kernel_table.h"

// Conversions between float16 and float in integer arithmetic, rounding half to even.
namespace symmoe::kernels::plain {
namespace {

template <typename To, typename From>
SYMMOE_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

SYMMOE_INLINE float float_of_float16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t fraction = half & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact
    return bits_as<float>(bits_as<uint32_t>(static_cast<float>(fraction) * 0x1p-24f) | sign);
  }
  const uint32_t wide_exponent = exponent == 0x1f ? 0xff : exponent + (127 - 15);
  return bits_as<float>(sign | (wide_exponent << 23) | (fraction << 13));
}

SYMMOE_INLINE uint16_t float16_of_float(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;  // NaN
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;                       // 65520 and more round to infinity
  } else if (magnitude >= 0x38800000u) {  // normal: rebias, round half to even
    half = (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  } else if (magnitude >= 0x33000000u) {  // subnormal: round the fraction to a multiple of 2^-24
    const uint32_t shift = 126u - (magnitude >> 23);
    const uint32_t fraction = (magnitude & 0x7fffffu) | 0x800000u;
    half = (fraction + (1u << (shift - 1)) - 1u + ((fraction >> shift) & 1u)) >> shift;
  } else {
    half = 0;
  }
  return static_cast<uint16_t>(half | sign);
}

}  // namespace
}  // namespace symmoe::kernels::plain
