#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/error.h"

namespace symmoe::bindings {

void bind_errors(pybind11::module_& module);
void bind_kernels(pybind11::module_& module);
void bind_epilogue(pybind11::module_& module);
void bind_routing(pybind11::module_& module);
void bind_group(pybind11::module_& module);
void bind_device(pybind11::module_& module);
void bind_device_group(pybind11::module_& module);
void bind_known_calls(pybind11::module_& module);
void bind_measure(pybind11::module_& module);

// Sets the Python error that stands for the exception in flight, in functions that Python calls
// directly. Only in a catch block.
void set_python_error() noexcept;

// Addresses travel as integers: the module knows no tensor type.
template <typename T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Rounded under the kernels' own mode: the caller's may flush a small scale to zero.
float fp32_of(double value);

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
