#pragma once

#include <cstddef>
#include <span>

#include "runtime/nccl/abi.h"

namespace symmoe::fake {

// 0 for a type that the fake does not know.
size_t size_of(NcclDataType type);
bool supported(NcclRedOp op);

// Where a sum is rounded to the element type: NCCL's symmetric kernels keep it wide until the end,
// its ring kernels store it at every rank that it passes.
enum class Rounding { kOnce, kEveryHop };

// output[i] = sources[0][i] op sources[1][i] op ..., in this order. Sums of bf16 and fp16 are wide
// (fp32). `output` may be one of the sources.
void combine(NcclDataType type, NcclRedOp op, Rounding rounding,
             std::span<const std::byte* const> sources, std::byte* output, size_t count);

}  // namespace symmoe::fake
