#include "bindings/prepared_call.h"

#include <structmember.h>

#include <cstddef>
#include <exception>
#include <new>
#include <utility>

#include "bindings/bindings.h"

namespace py = pybind11;

namespace symmoe::bindings {
namespace {

struct PreparedCall {
  PyObject base;
  vectorcallfunc vectorcall;
  std::weak_ptr<DeviceGroup> group;
  py::object plan_object;
  py::object buffer_object;
  const DevicePlan* plan;
  Buffer* buffer;
};

// As what pybind11 makes of it.
void set_python_error(const std::exception_ptr& failure) {
  try {
    py::cpp_function([failure] { std::rethrow_exception(failure); })();
  } catch (py::error_already_set& error) {
    error.restore();
  }
}

PyObject* call(PyObject* self, PyObject* const* arguments, size_t flags, PyObject* names) {
  const auto& prepared = *reinterpret_cast<PreparedCall*>(self);
  if (PyVectorcall_NARGS(flags) != 3 || names != nullptr) {
    PyErr_SetString(PyExc_TypeError, "expected (output, stream, deterministic)");
    return nullptr;
  }
  const uintptr_t output = PyLong_AsSize_t(arguments[0]);
  const uintptr_t stream = PyLong_AsSize_t(arguments[1]);
  const int deterministic = PyObject_IsTrue(arguments[2]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  std::exception_ptr failure;
  bool done = false;
  {
    const py::gil_scoped_release release;
    try {
      const std::shared_ptr<DeviceGroup> group = prepared.group.lock();
      if (group == nullptr) throw Closed("reduce_scatter: the group is closed");
      done = group->engine().run(*prepared.plan, *prepared.buffer, 0, pointer<void>(output),
                                 pointer<void>(stream), deterministic != 0);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure == nullptr) return PyBool_FromLong(done);
  set_python_error(failure);
  return nullptr;
}

void destroy(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  reinterpret_cast<PreparedCall*>(self)->~PreparedCall();
  type->tp_free(self);
  Py_DECREF(type);
}

PyTypeObject* prepared_call_type = nullptr;  // the interpreter's, for the life of the process

}  // namespace

void bind_prepared_call(py::module_& module) {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(PreparedCall, vectorcall), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
                                {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                                {Py_tp_members, members},
                                {0, nullptr}};
  static PyType_Spec spec = {
      "symmoe._core.PreparedCall", sizeof(PreparedCall), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
  if (!type) throw py::error_already_set();
  module.attr("PreparedCall") = type;
  prepared_call_type = reinterpret_cast<PyTypeObject*>(type.release().ptr());
}

py::object prepare_call(const std::shared_ptr<DeviceGroup>& group, py::object plan,
                        py::object buffer) {
  const auto* const its_plan = plan.cast<const DevicePlan*>();
  auto* const its_buffer = buffer.cast<Buffer*>();
  PyObject* const memory = prepared_call_type->tp_alloc(prepared_call_type, 0);
  if (memory == nullptr) throw py::error_already_set();
  auto* const prepared = reinterpret_cast<PreparedCall*>(memory);
  prepared->vectorcall = &call;
  new (&prepared->group) std::weak_ptr<DeviceGroup>(group);
  new (&prepared->plan_object) py::object(std::move(plan));
  new (&prepared->buffer_object) py::object(std::move(buffer));
  prepared->plan = its_plan;
  prepared->buffer = its_buffer;
  return py::reinterpret_steal<py::object>(memory);
}

}  // namespace symmoe::bindings
