#pragma once

#include "kernels/device/columns.h"
#include "kernels/device/dev.h"
#include "kernels/device/elements.h"
#include "kernels/device/launch.h"

// One row of elements in the memory of a block (__shared__): every thread puts its columns there,
// and all may look at them behind a barrier.
namespace symmoe::kernels::SYMMOE_PLATFORM {

template <typename Columns>
struct RowMemory;

template <DType kType>
struct RowMemory<WideColumns<kType, kType>> {
  using Columns = WideColumns<kType, kType>;
  static constexpr int kCount = Columns::kCount;
  static_assert(kCount * kBytes<kType> == sizeof(dev::Bits128));
  dev::Bits128 vectors[kEpilogueRowBytes / sizeof(dev::Bits128)];

  SYMMOE_DEVICE void put(const Columns& columns, const float (&x)[kCount]) {
    vectors[columns.first / kCount] = elements_of<kType>(x).bits[0];
  }
  SYMMOE_DEVICE void get(const Columns& columns, float (&x)[kCount]) const {
    const Elements<kType, kCount> elements{{vectors[columns.first / kCount]}};
    SYMMOE_UNROLL
    for (int i = 0; i < kCount; ++i) x[i] = elements[i];
  }
  SYMMOE_DEVICE float at(uint32_t column) const {
    constexpr uint32_t kPerWord = 4 / kBytes<kType>;
    const uint32_t word = vectors[column / kCount].word[column / kPerWord % 4];
    if constexpr (kType == DType::kFloat32) {
      return decode<kType>(word);
    } else {
      return decode<kType>(static_cast<uint16_t>(word >> column % kPerWord * 16));
    }
  }
};

template <DType kType>
struct RowMemory<NarrowColumns<kType, kType>> {
  using Columns = NarrowColumns<kType, kType>;
  static constexpr int kCount = Columns::kCount;
  ElementBits<kType> elements[kEpilogueRowBytes / sizeof(ElementBits<kType>)];

  SYMMOE_DEVICE void put(const Columns& columns, const float (&x)[kCount]) {
    SYMMOE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (columns.column(i) >= columns.hidden) break;
      elements[columns.column(i)] = encode<kType>(x[i]);
    }
  }
  // Zeros for columns behind the row's end.
  SYMMOE_DEVICE void get(const Columns& columns, float (&x)[kCount]) const {
    SYMMOE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      x[i] = 0.0f;
      if (columns.column(i) < columns.hidden) x[i] = at(static_cast<uint32_t>(columns.column(i)));
    }
  }
  SYMMOE_DEVICE float at(uint32_t column) const { return decode<kType>(elements[column]); }
};

}  // namespace symmoe::kernels::SYMMOE_PLATFORM
