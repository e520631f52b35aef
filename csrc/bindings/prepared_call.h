#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "collectives/device/device_group.h"

namespace symmoe::bindings {

// A reduce_scatter from a window's beginning as a callable of Python's: call(output, stream,
// deterministic), see fast_function.h. Keeps `plan` and `buffer`, but not the group.
pybind11::object prepare_call(const std::shared_ptr<DeviceGroup>& group, pybind11::object plan,
                              pybind11::object buffer);

}  // namespace symmoe::bindings
