#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace symmoe::bindings {

void bind_errors(pybind11::module_& module);
void bind_kernels(pybind11::module_& module);
void bind_group(pybind11::module_& module);
void bind_measure(pybind11::module_& module);

// Addresses travel as integers: the module knows no tensor type.
template <typename T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace symmoe::bindings
