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

// Engine::combine, with a routing unless that is null: True, done; False, some rank has no window;
// None, nothing was done.
std::optional<bool> combine_at_once(GroupHandle& group, const Plan& plan, const Routing* routing,
                                    uintptr_t input, uintptr_t weights, uintptr_t index,
                                    uintptr_t output, int64_t tokens, int64_t slots, int64_t hidden,
                                    int64_t pairs, std::optional<double> scale, int input_type,
                                    int output_type, int weights_type, bool index_is_64bit,
                                    int threads, const kernels::Epilogue* epilogue);

}  // namespace symmoe::bindings
