#pragma once

#include <bit>
#include <cstdint>

// The number formats that a device converts in hardware.
namespace symmoe::emulator {

// Scaling by a power of two is exact wherever the result is a float again, subnormals included.
inline float float_of_float16(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  if (magnitude >= 0x7c00u) {  // infinity or NaN: the largest exponent there, too
    value = std::bit_cast<float>((magnitude << 13) | 0x7f800000u);
  }
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | (uint32_t{half} & 0x8000u) << 16);
}

inline uint16_t float16_of_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  uint32_t half;
  if (!(magnitude < 65520.0f)) {  // what would round to 2^16 is infinite
    half = magnitude == magnitude ? 0x7c00u : 0x7fffu;
  } else if (magnitude < 0x1p-14f) {
    // A sum whose last place is 2^-24, that of a subnormal: the addition rounds.
    half = std::bit_cast<uint32_t>(magnitude + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  } else {
    const uint32_t narrower = std::bit_cast<uint32_t>(magnitude) - (uint32_t{127 - 15} << 23);
    half = (narrower + 0x0fffu + (narrower >> 13 & 1u)) >> 13;  // half to even
  }
  return static_cast<uint16_t>(half | (bits >> 16 & 0x8000u));
}

inline uint16_t bfloat16_of_float(float value) {
  if (value != value) return 0x7fffu;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace symmoe::emulator
