#pragma once

#include <cstdint>
#include <optional>

#include "bindings/group_handle.h"
#include "collectives/routing.h"
#include "kernels/cpu/kernels.h"

namespace symmoe::bindings {

// The arguments of a top-k sum as they come from Python.
kernels::TopkReduceArgs sum_from(uintptr_t input, uintptr_t weights, uintptr_t index,
                                 uintptr_t output, int64_t tokens, int64_t slots, int64_t hidden,
                                 int64_t pairs, std::optional<double> scale, int input_type,
                                 int output_type, int weights_type, bool index_is_64bit);

}  // namespace symmoe::bindings
