#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/epilogue_numbers.h"

namespace symmoe::kernels {

// What is done to a rank's own rows once they are summed. Per row, beginning with x, the sum
// rounded to the rows' type, and rounding to that type after each step that is there:
//   x = x * scale                  or, with scale_shared,  x = x + shared
//   x = x + shared                                         x = x * scale
//   x = residual = residual + x
//   x = x * f * weight             f = 1 / sqrt(squares / hidden + eps), in fp32, each operation
//                                  rounded; squares: see kSquareLanes
//   x = x / scales                 quantised: see QuantizeRow in cpu/isa/kernel_table.h
// The result is what the output holds. The memory is that of whoever sums: a processor's, or a
// device's.
struct Epilogue {
  const void* shared = nullptr;       // [rows, hidden], as the rows
  void* residual = nullptr;           // [rows, hidden], as the rows; updated
  const void* norm_weight = nullptr;  // [hidden]
  float* scales = nullptr;            // [rows], written
  float scale = 1.0f;
  float eps = 0.0f;
  bool has_scale = false;
  bool scale_shared = false;
  DType weight_type = DType::kBFloat16;  // the rows' type, or fp32
  Quantized quantized = Quantized::kNone;

  size_t output_size(DType type) const { return quantized == Quantized::kNone ? size_of(type) : 1; }
};

}  // namespace symmoe::kernels
