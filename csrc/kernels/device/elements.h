#pragma once

#include "base/dtype.h"
#include "kernels/device/dev.h"

// Elements of every type, as fp32 numbers, one by one or 16 bytes at a time.
namespace symmoe::kernels::SYMMOE_PLATFORM {

template <DType kType>
constexpr int kBytes = static_cast<int>(size_of(kType));

// One element as it lies in memory.
template <DType kType>
struct StoredElement {
  using Bits = uint16_t;
};
template <>
struct StoredElement<DType::kFloat32> {
  using Bits = uint32_t;
};
template <DType kType>
using ElementBits = typename StoredElement<kType>::Bits;

template <DType kType>
SYMMOE_DEVICE float decode(ElementBits<kType> bits) {
  if constexpr (kType == DType::kBFloat16) {
    return dev::bits_as<float>(uint32_t{bits} << 16);
  } else if constexpr (kType == DType::kFloat16) {
    return dev::float_of_float16(bits);
  } else {
    return dev::bits_as<float>(bits);
  }
}

// Two elements in one word. Of a 16-bit type only.
template <DType kType>
SYMMOE_DEVICE uint32_t encode_two(float low, float high) {
  static_assert(kType != DType::kFloat32);
  if constexpr (kType == DType::kBFloat16) {
    return dev::pack_bfloat16(low, high);
  } else {
    return dev::pack_float16(low, high);
  }
}

template <DType kType>
SYMMOE_DEVICE ElementBits<kType> encode(float value) {
  if constexpr (kType == DType::kFloat32) {
    return dev::bits_as<uint32_t>(value);
  } else {
    return static_cast<uint16_t>(encode_two<kType>(value, 0.0f));
  }
}

// kCount consecutive elements, a multiple of 16 bytes.
template <DType kType, int kCount>
struct Elements {
  static_assert(kCount * kBytes<kType> % 16 == 0);
  static constexpr int kLoads = kCount * kBytes<kType> / 16;
  static constexpr uint32_t kZeros = kType == DType::kFloat32 ? 0x80000000u : 0x80008000u;
  dev::Bits128 bits[kLoads];

  SYMMOE_DEVICE float operator[](int i) const {
    if constexpr (kType == DType::kFloat32) {
      return dev::bits_as<float>(bits[i / 4].word[i % 4]);
    } else {
      const uint32_t word = bits[i / 8].word[i / 2 % 4];
      return decode<kType>(static_cast<uint16_t>(i % 2 == 0 ? word : word >> 16));
    }
  }

  // What adds nothing to any sum, not even the sign of a zero.
  SYMMOE_DEVICE static Elements negative_zeros() {
    Elements zeros;
    SYMMOE_UNROLL
    for (int load = 0; load < kLoads; ++load) zeros.bits[load] = {{kZeros, kZeros, kZeros, kZeros}};
    return zeros;
  }

  SYMMOE_DEVICE static Elements load(const char* from) {
    Elements elements;
    SYMMOE_UNROLL
    for (int load = 0; load < kLoads; ++load) elements.bits[load] = dev::load16(from + load * 16);
    return elements;
  }

  // See dev::load_read_only.
  SYMMOE_DEVICE static Elements load_read_only(const char* from) {
    Elements elements;
    SYMMOE_UNROLL
    for (int load = 0; load < kLoads; ++load) {
      elements.bits[load] = dev::load16_read_only(from + load * 16);
    }
    return elements;
  }
};

template <DType kType, int kCount>
SYMMOE_DEVICE Elements<kType, kCount> elements_of(const float (&values)[kCount]) {
  Elements<kType, kCount> elements;
  constexpr int kPerWord = 4 / kBytes<kType>;
  SYMMOE_UNROLL
  for (int word = 0; word < kCount / kPerWord; ++word) {
    if constexpr (kType == DType::kFloat32) {
      elements.bits[word / 4].word[word % 4] = dev::bits_as<uint32_t>(values[word]);
    } else {
      elements.bits[word / 4].word[word % 4] =
          encode_two<kType>(values[2 * word], values[2 * word + 1]);
    }
  }
  return elements;
}

template <DType kType, int kCount>
SYMMOE_DEVICE void store_elements(char* to, const float (&values)[kCount]) {
  const Elements<kType, kCount> elements = elements_of<kType>(values);
  SYMMOE_UNROLL
  for (int store = 0; store < elements.kLoads; ++store) {
    dev::store16(to + store * 16, elements.bits[store]);
  }
}

}  // namespace symmoe::kernels::SYMMOE_PLATFORM
