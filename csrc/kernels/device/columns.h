#pragma once

#include "kernels/device/elements.h"
#include "kernels/device/launch.h"

// The columns of a row that one thread works on. Both kinds have the same members, so that the
// kernel is written once; a block covers threads * kCount columns.
namespace symmoe::kernels::SYMMOE_PLATFORM {

// Consecutive columns, in 16-byte accesses: for rows that all begin at multiples of 16 bytes.
template <DType kInput, DType kOutput>
struct WideColumns {
  static constexpr DType kIn = kInput;
  static constexpr DType kOut = kOutput;
  static constexpr int kCount = kIn == DType::kFloat32 && kOut == DType::kFloat32 ? 4 : 8;
  static constexpr int kBlocksAtOnce = 4;  // of a multiprocessor, whose registers they share
  using Loaded = Elements<kIn, kCount>;
  using OfOutput = WideColumns<kOutput, kOutput>;  // for reading what was written
  template <DType kOther>
  using Of = WideColumns<kOther, kOutput>;  // the same columns of other rows

  int64_t first;
  bool any;

  SYMMOE_DEVICE WideColumns(int64_t group, int64_t hidden)
      : first((group * dev::threads() + dev::thread()) * kCount), any(first < hidden) {}

  SYMMOE_DEVICE Loaded load(const char* row) const {
    return Loaded::load_read_only(row + first * kBytes<kIn>);
  }
  // Of rows that others write while the kernel runs.
  SYMMOE_DEVICE Loaded load_fresh(const char* row) const {
    return Loaded::load(row + first * kBytes<kIn>);
  }
  SYMMOE_DEVICE void store(char* row, const float (&values)[kCount]) const {
    store_elements<kOut>(row + first * kBytes<kOut>, values);
  }
};

// Columns a block's width apart, one by one: for rows anywhere, such as those of an odd length.
// Neighbouring threads touch neighbouring elements, so that whole lines still travel.
template <DType kInput, DType kOutput>
struct NarrowColumns {
  static constexpr DType kIn = kInput;
  static constexpr DType kOut = kOutput;
  static constexpr int kCount = 8;
  static constexpr int kBlocksAtOnce = 3;
  using OfOutput = NarrowColumns<kOutput, kOutput>;
  template <DType kOther>
  using Of = NarrowColumns<kOther, kOutput>;

  struct Loaded {
    ElementBits<kIn> bits[kCount];

    SYMMOE_DEVICE float operator[](int i) const { return decode<kIn>(bits[i]); }
    SYMMOE_DEVICE static Loaded negative_zeros() {
      Loaded zeros;
      SYMMOE_UNROLL
      for (int i = 0; i < kCount; ++i) zeros.bits[i] = kNegativeZero;
      return zeros;
    }
  };
  static constexpr auto kNegativeZero =
      static_cast<ElementBits<kIn>>(kIn == DType::kFloat32 ? 0x80000000u : 0x8000u);

  int64_t first;
  int64_t hidden;
  bool any;

  SYMMOE_DEVICE NarrowColumns(int64_t group, int64_t row_length)
      : first(group * dev::threads() * kCount + dev::thread()),
        hidden(row_length),
        any(first < row_length) {}

  SYMMOE_DEVICE int64_t column(int i) const { return first + i * int64_t{dev::threads()}; }

  SYMMOE_DEVICE Loaded load(const char* row) const {
    Loaded loaded = Loaded::negative_zeros();
    SYMMOE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (column(i) >= hidden) break;
      loaded.bits[i] = dev::load_read_only<ElementBits<kIn>>(row + column(i) * kBytes<kIn>);
    }
    return loaded;
  }
  SYMMOE_DEVICE Loaded load_fresh(const char* row) const {
    Loaded loaded = Loaded::negative_zeros();
    SYMMOE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (column(i) >= hidden) break;
      loaded.bits[i] = dev::load<ElementBits<kIn>>(row + column(i) * kBytes<kIn>);
    }
    return loaded;
  }
  SYMMOE_DEVICE void store(char* row, const float (&values)[kCount]) const {
    SYMMOE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (column(i) >= hidden) break;
      dev::store(row + column(i) * kBytes<kOut>, encode<kOut>(values[i]));
    }
  }
};

}  // namespace symmoe::kernels::SYMMOE_PLATFORM
