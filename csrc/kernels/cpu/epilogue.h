#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu/isa/kernel_table.h"

// Sums over ranks with work of the owner's own on the summed rows, in the same pass. Rules as in
// kernels.h: the same bits from every instruction set and thread count.
namespace symmoe::kernels {

// What is done to a rank's own rows once they are summed. Per row, beginning with x, the sum
// rounded to the rows' type, and rounding to that type after each step that is there:
//   x = x * scale                  or, with scale_shared,  x = x + shared
//   x = x + shared                                         x = x * scale
//   x = residual = residual + x
//   x = x * f * weight             f = 1 / sqrt(squares / hidden + eps), in fp32, each operation
//                                  rounded; squares: see kSquareLanes
//   x = x / scales                 quantised: see QuantizeRow
// The result is what the output holds.
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

// Throws InvalidArgument unless these steps can be done to `rows` rows of this type.
void check_epilogue(const Epilogue& steps, DType type, int64_t rows);

// Memory that is written (output, residual, scales) must not overlap anything else, but for output,
// which may be exactly one of the sources unless it is quantised.
struct EpilogueReduceArgs {
  const void* const* sources = nullptr;  // by rank: [rows, hidden]
  const uint64_t* masks = nullptr;       // [rows], see routing.h; or nullptr: all ranks
  int ranks = 0;                         // at most kMaskBits
  void* output = nullptr;                // [rows, hidden] of the rows' type, or bytes
  int64_t rows = 0;
  int64_t hidden = 0;
  DType type = DType::kBFloat16;
  Epilogue steps;
};
void reduce_with_epilogue(const EpilogueReduceArgs& args, int threads);

}  // namespace symmoe::kernels
