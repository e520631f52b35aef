// Defines the table of kernels of SYMMOE_ISA_NAMESPACE, called SYMMOE_ISA_NAME.
#pragma once

#include "kernels/cpu/isa/kernel_table.h"
#include "kernels/cpu/isa/rank_range.h"
#include "kernels/cpu/isa/rank_row.h"
#include "kernels/cpu/isa/stream_copy.h"
#include "kernels/cpu/isa/topk_row.h"

namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE {

#define SYMMOE_TOPK_ROWS(in, out) {topk_row<in, out, false>, topk_row<in, out, true>}
#define SYMMOE_TOPK_TYPES(in)                                                     \
  {SYMMOE_TOPK_ROWS(in, DType::kBFloat16), SYMMOE_TOPK_ROWS(in, DType::kFloat16), \
   SYMMOE_TOPK_ROWS(in, DType::kFloat32)}

// One source per instruction set includes this file, each with a namespace of its own.
// NOLINTNEXTLINE(misc-definitions-in-headers)
const KernelTable kTable = {
    SYMMOE_ISA_NAME,
    {SYMMOE_TOPK_TYPES(DType::kBFloat16), SYMMOE_TOPK_TYPES(DType::kFloat16),
     SYMMOE_TOPK_TYPES(DType::kFloat32)},
    {rank_range<DType::kBFloat16>, rank_range<DType::kFloat16>, rank_range<DType::kFloat32>},
    {rank_row<DType::kBFloat16>, rank_row<DType::kFloat16>, rank_row<DType::kFloat32>},
    stream_copy,
    finish_stream,
};

#undef SYMMOE_TOPK_ROWS
#undef SYMMOE_TOPK_TYPES

}  // namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE
