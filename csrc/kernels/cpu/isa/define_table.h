// Defines the table of kernels of SYMMOE_ISA_NAMESPACE, called SYMMOE_ISA_NAME.
#pragma once

#include "kernels/cpu/isa/epilogue_row.h"
#include "kernels/cpu/isa/kernel_table.h"
#include "kernels/cpu/isa/quantize_row.h"
#include "kernels/cpu/isa/rank_range.h"
#include "kernels/cpu/isa/rank_row.h"
#include "kernels/cpu/isa/stream_copy.h"
#include "kernels/cpu/isa/topk_row.h"

namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE {

#define SYMMOE_TOPK_ROWS(in, out) {topk_row<in, out, false>, topk_row<in, out, true>}
#define SYMMOE_TOPK_TYPES(in)                                                     \
  {SYMMOE_TOPK_ROWS(in, DType::kBFloat16), SYMMOE_TOPK_ROWS(in, DType::kFloat16), \
   SYMMOE_TOPK_ROWS(in, DType::kFloat32)}
#define SYMMOE_NORM_ROWS(type) {norm_row<type, type>, norm_row<type, DType::kFloat32>}
#define SYMMOE_QUANTIZE_ROWS(type) \
  {nullptr, quantize_row<type, Quantized::kInt8>, quantize_row<type, Quantized::kFloat8>}

// One source per instruction set includes this file, each with a namespace of its own.
// NOLINTNEXTLINE(misc-definitions-in-headers)
const KernelTable kTable = {
    SYMMOE_ISA_NAME,
    {SYMMOE_TOPK_TYPES(DType::kBFloat16), SYMMOE_TOPK_TYPES(DType::kFloat16),
     SYMMOE_TOPK_TYPES(DType::kFloat32)},
    {rank_range<DType::kBFloat16>, rank_range<DType::kFloat16>, rank_range<DType::kFloat32>},
    {rank_row<DType::kBFloat16>, rank_row<DType::kFloat16>, rank_row<DType::kFloat32>},
    {row_steps<DType::kBFloat16>, row_steps<DType::kFloat16>, row_steps<DType::kFloat32>},
    {SYMMOE_NORM_ROWS(DType::kBFloat16), SYMMOE_NORM_ROWS(DType::kFloat16),
     SYMMOE_NORM_ROWS(DType::kFloat32)},
    {SYMMOE_QUANTIZE_ROWS(DType::kBFloat16), SYMMOE_QUANTIZE_ROWS(DType::kFloat16),
     SYMMOE_QUANTIZE_ROWS(DType::kFloat32)},
    stream_copy,
    finish_stream,
};

#undef SYMMOE_TOPK_ROWS
#undef SYMMOE_TOPK_TYPES
#undef SYMMOE_NORM_ROWS
#undef SYMMOE_QUANTIZE_ROWS

}  // namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE
