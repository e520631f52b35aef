#pragma once

#include "kernels/device/bytes.h"
#include "kernels/device/columns.h"
#include "kernels/device/dev.h"
#include "kernels/device/elements.h"
#include "kernels/device/grid.h"
#include "kernels/device/launch.h"
#include "kernels/device/row_memory.h"

// What becomes of a summed row (kernels/epilogue.h), by one block, to the CPU's bits: first the
// steps that each element goes through by itself, as soon as it is summed, then, behind a barrier,
// those that need the whole row.
namespace symmoe::kernels::SYMMOE_PLATFORM {

// Of a block, in its own memory.
template <typename Columns>
struct EpilogueWork {
  static constexpr int kTop = 16;
  RowMemory<Columns> row;
  alignas(16) float squares[kSquareLanes];
  uint32_t largest[kMaxBlockThreads];
  uint32_t top[kTop];
};

// Blocks of a multiprocessor that have a row each, of those that are wanted.
template <typename Columns>
constexpr int row_blocks(int wanted) {
  const int fit = dev::kSharedBytes / static_cast<int>(sizeof(EpilogueWork<Columns>));
  return fit < wanted ? fit : wanted;
}

// The rows of a call: where they go, and by which steps.
struct EpilogueRows {
  const Epilogue& steps;
  void* output;
  int64_t hidden;

  SYMMOE_DEVICE bool need_whole_rows() const {
    return steps.norm_weight != nullptr || steps.quantized != Quantized::kNone;
  }
  template <DType kType>
  SYMMOE_DEVICE char* row_of(void* rows, int64_t row) const {
    return static_cast<char*>(rows) + row * hidden * kBytes<kType>;
  }
};

// As elements of this type hold them.
template <DType kType, int kCount>
SYMMOE_DEVICE void round_all(float (&x)[kCount]) {
  if constexpr (kType != DType::kFloat32) {
    SYMMOE_UNROLL
    for (int i = 0; i < kCount; i += 2) {
      const uint32_t two = encode_two<kType>(x[i], x[i + 1]);
      x[i] = decode<kType>(static_cast<uint16_t>(two));
      x[i + 1] = decode<kType>(static_cast<uint16_t>(two >> 16));
    }
  }
}

template <DType kType, int kCount>
SYMMOE_DEVICE void scale_all(float (&x)[kCount], float scale) {
  SYMMOE_UNROLL
  for (float& value : x) value = dev::mul(value, scale);
  round_all<kType>(x);
}

template <DType kType, int kCount, typename Loaded>
SYMMOE_DEVICE void add_all(float (&x)[kCount], const Loaded& others) {
  SYMMOE_UNROLL
  for (int i = 0; i < kCount; ++i) x[i] = dev::add(others[i], x[i]);
  round_all<kType>(x);
}

// What is added to a row, of some columns: asked for early, so that all of it is on its way at
// once.
template <typename Columns>
struct Addends {
  typename Columns::Loaded shared;
  typename Columns::Loaded residual;

  SYMMOE_DEVICE Addends(const EpilogueRows& rows, int64_t row, const Columns& columns)
      : shared(Columns::Loaded::negative_zeros()), residual(Columns::Loaded::negative_zeros()) {
    const int64_t at = row * rows.hidden * kBytes<Columns::kIn>;
    if (rows.steps.shared != nullptr) {
      shared = columns.load(static_cast<const char*>(rows.steps.shared) + at);
    }
    if (rows.steps.residual != nullptr) {
      residual = columns.load_fresh(static_cast<const char*>(rows.steps.residual) + at);
    }
  }
};

// The steps of single elements. `x`: the sums of these columns, not rounded yet.
template <typename Columns>
SYMMOE_DEVICE void take_sums(const EpilogueRows& rows, int64_t row, const Columns& columns,
                             const Addends<Columns>& addends, float (&x)[Columns::kCount],
                             EpilogueWork<Columns>& work) {
  constexpr DType kType = Columns::kIn;
  const Epilogue& steps = rows.steps;
  round_all<kType>(x);
  if (steps.has_scale && !steps.scale_shared) scale_all<kType>(x, steps.scale);
  if (steps.shared != nullptr) add_all<kType>(x, addends.shared);
  if (steps.has_scale && steps.scale_shared) scale_all<kType>(x, steps.scale);
  if (steps.residual != nullptr) {
    add_all<kType>(x, addends.residual);
    columns.store(rows.row_of<kType>(steps.residual, row), x);
  }
  if (rows.need_whole_rows()) {
    work.row.put(columns, x);
  } else {
    columns.store(rows.row_of<kType>(rows.output, row), x);
  }
}

// Number i plus number i + half of them, and again.
template <int kCount>
SYMMOE_DEVICE float folded(const float (&numbers)[kCount]) {
  if constexpr (kCount == 1) {
    return numbers[0];
  } else {
    float sums[kCount / 2];
    SYMMOE_UNROLL
    for (int i = 0; i < kCount / 2; ++i) sums[i] = dev::add(numbers[i], numbers[i + kCount / 2]);
    return folded(sums);
  }
}

// 1 / sqrt(mean of squares + eps). By the first threads in the order that all kernels have; the
// others wait. The row is there.
template <typename Columns>
SYMMOE_DEVICE float norm_factor(const EpilogueRows& rows, EpilogueWork<Columns>& work) {
  static_assert(kMaxPeers >= kSquareLanes, "a block has at least so many threads");
  const auto hidden = static_cast<uint32_t>(rows.hidden);
  if (dev::thread() < kSquareLanes) {
    float sum = 0.0f;
    SYMMOE_UNROLL_BY(8)
    for (uint32_t column = dev::thread(); column < hidden; column += kSquareLanes) {
      const float x = work.row.at(column);
      sum = dev::add(sum, dev::mul(x, x));
    }
    work.squares[dev::thread()] = sum;
  }
  dev::sync_block();
  const float squares = folded(work.squares);
  const float mean = dev::div(squares, static_cast<float>(static_cast<int32_t>(hidden)));
  return dev::div(1.0f, dev::sqrt(dev::add(mean, rows.steps.eps)));
}

template <typename Columns, DType kWeight>
SYMMOE_DEVICE void norm_by(const EpilogueRows& rows, int64_t group, float factor,
                           float (&x)[Columns::kCount]) {
  using Weights = typename Columns::template Of<kWeight>;
  const auto weights =
      Weights(group, rows.hidden).load(static_cast<const char*>(rows.steps.norm_weight));
  SYMMOE_UNROLL
  for (int i = 0; i < Columns::kCount; ++i) {
    x[i] = dev::mul(dev::mul(x[i], factor), weights[i]);
  }
}

template <typename Columns>
SYMMOE_DEVICE void norm_columns(const EpilogueRows& rows, int64_t group, float factor,
                                float (&x)[Columns::kCount]) {
  constexpr DType kType = Columns::kIn;
  if (rows.steps.weight_type == kType) {
    norm_by<Columns, kType>(rows, group, factor, x);
  } else {
    norm_by<Columns, DType::kFloat32>(rows, group, factor, x);
  }
  round_all<kType>(x);
}

SYMMOE_DEVICE uint32_t larger_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

// The largest of all threads' numbers.
template <typename Columns>
SYMMOE_DEVICE uint32_t largest_of_block(uint32_t mine, EpilogueWork<Columns>& work) {
  constexpr unsigned kTop = EpilogueWork<Columns>::kTop;
  work.largest[dev::thread()] = mine;
  dev::sync_block();
  if (dev::thread() < kTop) {
    for (unsigned other = dev::thread() + kTop; other < dev::threads(); other += kTop) {
      mine = larger_of(mine, work.largest[other]);
    }
    work.top[dev::thread()] = mine;
  }
  dev::sync_block();
  SYMMOE_UNROLL
  for (const uint32_t other : work.top) mine = larger_of(mine, other);
  return mine;
}

// The row in the block's memory as bytes. `largest`: bits of its largest magnitude, which as
// integers have the order of the numbers; a NaN is above all.
template <typename Columns>
SYMMOE_DEVICE void quantize_row(const EpilogueRows& rows, int64_t row, uint32_t largest,
                                EpilogueWork<Columns>& work) {
  constexpr uint32_t kInfinity = 0x7f800000;
  constexpr uint32_t kNan = 0x7fc00000;
  constexpr float kSmallestNormal = 0x1p-126f;
  const bool whole = rows.steps.quantized == Quantized::kInt8;
  const bool finite = largest < kInfinity;
  float scale = dev::div(dev::bits_as<float>(largest), whole ? 127.0f : 448.0f);
  if (scale < kSmallestNormal) scale = kSmallestNormal;
  const float inverse = dev::div(1.0f, scale);
  for (int64_t group = 0; group * dev::threads() * Columns::kCount < rows.hidden; ++group) {
    const Columns columns(group, rows.hidden);
    if (!columns.any) break;
    float x[Columns::kCount];
    work.row.get(columns, x);
    uint32_t bytes[Columns::kCount];
    SYMMOE_UNROLL
    for (int i = 0; i < Columns::kCount; ++i) {
      const float scaled = dev::mul(x[i], inverse);
      bytes[i] = !finite ? 0 : whole ? int8_of(scaled) : float8_of(scaled);
    }
    store_bytes(columns, static_cast<char*>(rows.output) + row * rows.hidden, bytes);
  }
  if (dev::thread() == 0) {
    dev::store(rows.steps.scales + row, finite ? scale : dev::bits_as<float>(kNan));
  }
}

// The steps of the whole row, by all threads of the block, once all of the row has been taken.
// Each thread looks at the columns only that it has put there itself, but for their squares: what
// the next row needs may be put there afterwards.
template <typename Columns>
SYMMOE_DEVICE void finish_row(const EpilogueRows& rows, int64_t row, EpilogueWork<Columns>& work) {
  constexpr DType kType = Columns::kIn;
  if (!rows.need_whole_rows()) return;
  const bool norms = rows.steps.norm_weight != nullptr;
  const bool quantizes = rows.steps.quantized != Quantized::kNone;
  float factor = 1.0f;
  if (norms) {
    dev::sync_block();
    factor = norm_factor(rows, work);
  }
  uint32_t largest = 0;
  for (int64_t group = 0; group * dev::threads() * Columns::kCount < rows.hidden; ++group) {
    const Columns columns(group, rows.hidden);
    if (!columns.any) break;
    float x[Columns::kCount];
    work.row.get(columns, x);
    if (norms) norm_columns<Columns>(rows, group, factor, x);
    if (!quantizes) {
      columns.store(rows.row_of<kType>(rows.output, row), x);
      continue;
    }
    work.row.put(columns, x);
    SYMMOE_UNROLL
    for (const float value : x) largest = larger_of(largest, magnitude_bits(value));
  }
  if (quantizes) quantize_row(rows, row, largest_of_block(largest, work), work);
}

// Whether all that a row is made of, and where it goes, can be had in 16-byte accesses.
template <DType kType>
bool is_wide(const Epilogue& steps, const void* output, int64_t hidden) {
  for (const void* const rows :
       {output, steps.shared, static_cast<const void*>(steps.residual), steps.norm_weight}) {
    if (bytes_to_boundary(rows) != 0) return false;
  }
  return hidden * kBytes<kType> % kBoundary == 0;
}

}  // namespace symmoe::kernels::SYMMOE_PLATFORM
