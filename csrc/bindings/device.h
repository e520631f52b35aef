#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

#include "bindings/bindings.h"
#include "runtime/device.h"

// What the bindings of devices and of groups of devices share.
namespace symmoe::bindings {

inline StreamHandle stream_from(uintptr_t stream) { return pointer<void>(stream); }

kernels::TopkReduceLaunch topk_launch(uintptr_t input, uintptr_t weights, uintptr_t index,
                                      uintptr_t output, int64_t tokens, int64_t slots,
                                      int64_t hidden, int64_t pairs, std::optional<double> scale,
                                      int input_type, int output_type, int weights_type,
                                      bool index_is_64bit);

// What a group of devices is made from.
void bind_device_config(pybind11::module_& module);

pybind11::dict properties_of(const Device& device);

}  // namespace symmoe::bindings
