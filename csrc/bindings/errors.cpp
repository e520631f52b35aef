#include "base/error.h"

#include <pybind11/pybind11.h>

#include <exception>
#include <new>

#include "bindings/bindings.h"

namespace py = pybind11;

namespace symmoe::bindings {
namespace {

// The classes are Python's own (symmoe.errors), so that they can have Python bases and docs.
void raise(const char* name, const std::exception& error) {
  const py::object type = py::module_::import("symmoe.errors").attr(name);
  PyErr_SetString(type.ptr(), error.what());
}

// By value: that is what pybind11 calls.
void translate(std::exception_ptr pointer) {  // NOLINT(performance-unnecessary-value-param)
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const InvalidArgument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const Interrupted& error) {
    // A signal handler has raised already: KeyboardInterrupt, as a rule.
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_KeyboardInterrupt, error.what());
  } catch (const PeerLost& error) {
    raise("PeerLostError", error);
  } catch (const DeadlineExceeded& error) {
    raise("DeadlineError", error);
  } catch (const Poisoned& error) {
    raise("PoisonedError", error);
  } catch (const Closed& error) {
    raise("ClosedError", error);
  } catch (const Mismatch& error) {
    raise("MismatchError", error);
  } catch (const OutOfMemory& error) {
    raise("WindowMemoryError", error);
  } catch (const Unavailable& error) {
    raise("UnavailableError", error);
  } catch (const DeviceError& error) {
    raise("DeviceError", error);
  } catch (const NcclError& error) {
    raise("NcclError", error);
  } catch (const SystemError& error) {
    raise("SystemCallError", error);
  } catch (const Error& error) {
    raise("SymmoeError", error);
  }
}

}  // namespace

void set_python_error() noexcept {
  try {
    try {
      translate(std::current_exception());
    } catch (py::error_already_set& error) {
      error.restore();
    } catch (const std::bad_alloc&) {
      PyErr_NoMemory();
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
    }
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "an error that has no name");
  }
}

void bind_errors(py::module_&) { py::register_exception_translator(&translate); }

}  // namespace symmoe::bindings
