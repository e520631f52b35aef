#include "bindings/prepared_call.h"

#include <memory>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/fast_function.h"

namespace py = pybind11;

namespace symmoe::bindings {
namespace {

struct PreparedCall {
  std::weak_ptr<DeviceGroup> group;
  py::object plan_object;  // the objects keep what the pointers point to
  py::object buffer_object;
  const DevicePlan* plan;
  Buffer* buffer;
};

PyObject* run(PreparedCall& call, Given given) {
  const uintptr_t output = PyLong_AsSize_t(given[0]);
  const uintptr_t stream = PyLong_AsSize_t(given[1]);
  const int deterministic = PyObject_IsTrue(given[2]);
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  bool done = false;
  {
    const py::gil_scoped_release release;
    const std::shared_ptr<DeviceGroup> group = call.group.lock();
    if (group == nullptr) throw Closed("reduce_scatter: the group is closed");
    done = group->engine().run(*call.plan, *call.buffer, 0,
                               {.output = pointer<void>(output),
                                .deterministic = deterministic != 0,
                                .stream = pointer<void>(stream)});
  }
  return PyBool_FromLong(done);
}

}  // namespace

py::object prepare_call(const std::shared_ptr<DeviceGroup>& group, py::object plan,
                        py::object buffer) {
  const auto* const its_plan = plan.cast<const DevicePlan*>();
  auto* const its_buffer = buffer.cast<Buffer*>();
  return fast_function<PreparedCall, &run, 3>(
      "reduce_scatter", std::make_shared<PreparedCall>(PreparedCall{
                            group, std::move(plan), std::move(buffer), its_plan, its_buffer}));
}

}  // namespace symmoe::bindings
