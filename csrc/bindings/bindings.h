#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/error.h"

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

// Enumerators travel as their numbers, 0 to `count` - 1.
template <typename Enum>
Enum enum_from(int number, int count, const char* what) {
  if (number < 0 || number >= count) {
    throw InvalidArgument(std::string("there is no ") + what + " number " + std::to_string(number) +
                          " (0 to " + std::to_string(count - 1) + ")");
  }
  return static_cast<Enum>(number);
}

inline DType dtype_from(int number) { return enum_from<DType>(number, kDTypes, "element type"); }

}  // namespace symmoe::bindings
