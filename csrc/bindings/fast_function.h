#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "bindings/bindings.h"

namespace symmoe::bindings {

// The arguments of a call from Python, as they are: borrowed references.
using Given = PyObject* const*;

template <typename Context>
using FastBody = PyObject* (*)(Context & context, Given given);

// What Python calls; `capsule` holds a std::shared_ptr<Context>.
template <typename Context, FastBody<Context> kBody, Py_ssize_t kArguments>
PyObject* fast_call(PyObject* capsule, Given given, Py_ssize_t count) noexcept {
  if (count != kArguments) {
    PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", kArguments, count);
    return nullptr;
  }
  try {
    const auto* const context =
        static_cast<std::shared_ptr<Context>*>(PyCapsule_GetPointer(capsule, nullptr));
    return kBody(**context, given);
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

// A function of Python's own kind that runs `kBody` on `context`, which it keeps alive. Such a call
// takes a fraction of one through pybind11, whose conversion of ten arguments would take longer
// than all the rest of a small collective's Python side.
template <typename Context, FastBody<Context> kBody, Py_ssize_t kArguments>
pybind11::object fast_function(const char* name, std::shared_ptr<Context> context) {
  static PyMethodDef definition = {name,
                                   reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(
                                       &fast_call<Context, kBody, kArguments>)),
                                   METH_FASTCALL, nullptr};
  const pybind11::capsule owner(new std::shared_ptr<Context>(std::move(context)), [](void* held) {
    delete static_cast<std::shared_ptr<Context>*>(held);
  });
  return pybind11::reinterpret_steal<pybind11::object>(
      PyCFunction_NewEx(&definition, owner.ptr(), nullptr));
}

}  // namespace symmoe::bindings
