#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/epilogue.h"

// Sums over ranks with work of the owner's own on the summed rows, in the same pass. Rules as in
// kernels.h: the same bits from every instruction set and thread count.
namespace symmoe::kernels {

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
