#pragma once

#include "kernels/device/columns.h"
#include "kernels/device/dev.h"
#include "kernels/device/launch.h"

// Numbers as bytes of a quantised row, by integers alone, so that every device has the same bits.
namespace symmoe::kernels::SYMMOE_PLATFORM {

SYMMOE_DEVICE uint32_t magnitude_bits(float x) { return dev::bits_as<uint32_t>(x) & 0x7fffffffu; }

// A number of at most 127. Added to 1.5 * 2^23, the last place counts ones, and so the sum's
// rounding is the wanted one; its lowest byte is the number, also below zero.
SYMMOE_DEVICE uint32_t int8_of(float x) {
  return dev::bits_as<uint32_t>(dev::add(x, 0x1.8p23f)) & 0xffu;
}

// To float8_e4m3fn, a number of at most 448: 4 bits of exponent, 127 - 7 = 120 less than a float's,
// and 3 of fraction, so 20 are rounded off. Numbers below 2^-6 are multiples of 2^-9, which the
// last place of 2^14 counts; 8 of them are 2^-6, in code as well.
SYMMOE_DEVICE uint32_t float8_of(float x) {
  constexpr uint32_t kSmallestNormal = 0x3c800000;
  const uint32_t bits = dev::bits_as<uint32_t>(x);
  const uint32_t magnitude = magnitude_bits(x);
  const uint32_t sign = bits >> 24 & 0x80u;
  if (magnitude >= kSmallestNormal) {
    return (((magnitude + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3)) | sign;
  }
  const float units = dev::add(dev::bits_as<float>(magnitude), 0x1p14f);
  return (dev::bits_as<uint32_t>(units) - dev::bits_as<uint32_t>(0x1p14f)) | sign;
}

// One byte per column of the row, which begins at `row`.
template <DType kType, int kCount>
SYMMOE_DEVICE void store_bytes(const WideColumns<kType, kType>& columns, char* row,
                               const uint32_t (&bytes)[kCount]) {
  uint32_t words[kCount / 4];
  SYMMOE_UNROLL
  for (int i = 0; i < kCount / 4; ++i) {
    words[i] =
        bytes[4 * i] | bytes[4 * i + 1] << 8 | bytes[4 * i + 2] << 16 | bytes[4 * i + 3] << 24;
  }
  if constexpr (kCount == 8) {
    dev::store(row + columns.first, words[0] | uint64_t{words[1]} << 32);
  } else {
    dev::store(row + columns.first, words[0]);
  }
}

template <DType kType, int kCount>
SYMMOE_DEVICE void store_bytes(const NarrowColumns<kType, kType>& columns, char* row,
                               const uint32_t (&bytes)[kCount]) {
  SYMMOE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    if (columns.column(i) >= columns.hidden) break;
    dev::store(row + columns.column(i), static_cast<uint8_t>(bytes[i]));
  }
}

}  // namespace symmoe::kernels::SYMMOE_PLATFORM
