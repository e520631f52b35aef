#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

// Element types as the fake NCCL adds them: what is stored, and what is added up in.
namespace symmoe::fake {

inline float widen_bfloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// To nearest, ties to even. Every NaN becomes the same one, as on the GPU.
inline uint16_t round_to_bfloat16(float value) {
  if (value != value) return 0x7fff;
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float widen_float16(uint16_t half) {
  const uint32_t sign = (uint32_t{half} & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  const uint32_t fraction = half & 0x3ff;
  if (exponent == 0) {
    // A subnormal counts units of 2^-24, which a float holds exactly.
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 0x1f ? 0xff : exponent - 15 + 127;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

inline uint16_t round_to_float16(float value) {
  if (value != value) return 0x7fff;
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffff);
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  if (magnitude < 0x1p-14f) {
    // Adding half of the float whose last place is 2^-24 rounds to a subnormal's places.
    const float rounded = magnitude + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded) & 0x7ff);
  }
  const uint32_t wide = std::bit_cast<uint32_t>(magnitude) - ((127 - 15) << 23);
  return sign | static_cast<uint16_t>((wide + 0xfff + ((wide >> 13) & 1)) >> 13);
}

// A type that is its own accumulator.
template <typename T>
struct Plain {
  using Stored = T;
  using Sum = T;
  static Sum widen(Stored value) { return value; }
  static Stored narrow(Sum value) { return value; }
};

struct Bfloat16 {
  using Stored = uint16_t;
  using Sum = float;
  static Sum widen(Stored value) { return widen_bfloat16(value); }
  static Stored narrow(Sum value) { return round_to_bfloat16(value); }
};

struct Float16 {
  using Stored = uint16_t;
  using Sum = float;
  static Sum widen(Stored value) { return widen_float16(value); }
  static Stored narrow(Sum value) { return round_to_float16(value); }
};

// The caller's memory has no alignment that could be relied on, and a type of its own.
template <typename Element>
typename Element::Sum load(const std::byte* memory, size_t index) {
  typename Element::Stored stored;
  std::memcpy(&stored, memory + index * sizeof(stored), sizeof(stored));
  return Element::widen(stored);
}

template <typename Element>
void store(std::byte* memory, size_t index, typename Element::Sum value) {
  const typename Element::Stored stored = Element::narrow(value);
  std::memcpy(memory + index * sizeof(stored), &stored, sizeof(stored));
}

}  // namespace symmoe::fake
