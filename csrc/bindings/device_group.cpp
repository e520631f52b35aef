#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/device.h"
#include "bindings/handle.h"
#include "bindings/prepared_call.h"
#include "collectives/device/device_group.h"

namespace py = pybind11;

namespace symmoe::bindings {
namespace {

Role role_from(int number) { return enum_from<Role>(number, kRoles, "role"); }

// Ranks settle rare things through what Python has for it: the process group's store.
class PythonAgreement : public Agreement {
 public:
  explicit PythonAgreement(py::object gather) : gather_(std::move(gather)) {}
  // By Python's own means: a destructor must not throw, and pybind11's might.
  ~PythonAgreement() override {
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_XDECREF(gather_.release().ptr());
    PyGILState_Release(state);
  }
  PythonAgreement(const PythonAgreement&) = delete;
  PythonAgreement& operator=(const PythonAgreement&) = delete;

  std::vector<std::string> gather(const std::string& topic, const std::string& text) override {
    const py::gil_scoped_acquire acquire;
    return gather_(topic, text).cast<std::vector<std::string>>();
  }

 private:
  py::object gather_;
};

class DeviceGroupHandle : public Handle<DeviceGroup> {
 public:
  DeviceGroupHandle(int rank, int world, const DeviceGroupConfig& config, py::object gather) {
    auto agreement = std::make_unique<PythonAgreement>(std::move(gather));
    std::shared_ptr<DeviceGroup> group;
    {
      const py::gil_scoped_release release;
      group = std::make_shared<DeviceGroup>(rank, world, config, std::move(agreement));
    }
    hold(std::move(group));
  }

  template <typename Body>
  auto engine(Body&& body) const {
    return call([&](DeviceGroup& group) { return body(group.engine()); });
  }

  // Memory under live views stays.
  void close() {
    if (empty()) return;
    engine([](DeviceEngine& engine) { engine.close(); });
    let_go();
  }
};

template <auto kMethod>
void at_once(const DeviceGroupHandle& self) {
  self.engine([](DeviceEngine& engine) { (engine.*kMethod)(); });
}

py::dict stats_of(const DeviceGroupHandle& handle) {
  struct Numbers {
    PoolStats pool;
    PoolStats scratch;
    std::vector<uint64_t> paths;
    uint64_t staged;
  };
  const Numbers numbers = handle.engine([](DeviceEngine& engine) {
    const DeviceCounts& counts = engine.counts();
    std::vector<uint64_t> paths;
    for (const auto& path : counts.paths) paths.push_back(path.load());
    return Numbers{engine.pool_stats(), engine.scratch_stats(), paths, counts.staged.load()};
  });
  py::dict stats;
  stats["live_bytes"] = numbers.pool.live_bytes;
  stats["stage_bytes"] = numbers.pool.stage_bytes;
  stats["retired_bytes"] = numbers.pool.retired_bytes;
  stats["view_bytes"] = numbers.pool.view_bytes;
  stats["pinned_bytes"] = numbers.pool.pinned_bytes;
  stats["peak_bytes"] = numbers.pool.peak_bytes;
  stats["growths"] = numbers.pool.growths;
  stats["buffers"] = numbers.pool.buffers;
  stats["scratch_bytes"] = numbers.scratch.live_bytes + numbers.scratch.retired_bytes;
  for (int kind = 0; kind < kPathKinds; ++kind) {
    const std::string name = path_of(static_cast<PathKind>(kind)).name();
    stats[py::str("calls_" + name)] = numbers.paths[static_cast<size_t>(kind)];
  }
  stats["calls_staged"] = numbers.staged;
  return stats;
}

py::list explain(const DeviceGroupHandle& handle, const DevicePlan& plan, bool deterministic,
                 bool from_sum, bool routed, int slots) {
  const CallForm form{deterministic, from_sum, routed, slots};
  const auto candidates =
      handle.engine([&](DeviceEngine& engine) { return engine.explain(plan, form); });
  py::list result;
  for (const Candidate& each : candidates) {
    result.append(py::make_tuple(each.path->name(), each.refusal, each.us, each.measured));
  }
  return result;
}

// A call in numbers: output, output_rows, sizes, routing, summed, deterministic, stream, epilogue,
// sums.
using CallNumbers = std::tuple<uintptr_t, int64_t, uintptr_t, DeviceRouting*, bool, bool, uintptr_t,
                               const kernels::Epilogue*, uintptr_t>;

DeviceCall call_from(const CallNumbers& numbers) {
  const auto& [output, output_rows, sizes, routing, summed, deterministic, stream, epilogue, sums] =
      numbers;
  return {.output = pointer<void>(output),
          .output_rows = output_rows,
          .sizes = pointer<const int32_t>(sizes),
          .routing = routing,
          .summed = summed,
          .deterministic = deterministic,
          .stream = stream_from(stream),
          .epilogue = epilogue,
          .sums = pointer<void>(sums)};
}

// operation, lane, input, output, output_bytes, stream.
using OutsideNumbers = std::tuple<int, int, uintptr_t, uintptr_t, size_t, uintptr_t>;

template <auto kMethod>
void at_outside_call(const DeviceGroupHandle& self, const OutsideNumbers& numbers) {
  const auto& [kind, lane, input, output, output_bytes, stream] = numbers;
  const OutsideCall call{.kind = enum_from<Plan::Kind>(kind, Plan::kKinds, "operation"),
                         .lane = lane,
                         .input = pointer<const void>(input),
                         .output = pointer<void>(output),
                         .output_bytes = output_bytes,
                         .stream = stream_from(stream)};
  self.engine([&](DeviceEngine& engine) { (engine.*kMethod)(call); });
}

// The arguments of a top-k sum, as `topk_launch` takes them.
using SumNumbers = std::tuple<uintptr_t, uintptr_t, uintptr_t, uintptr_t, int64_t, int64_t, int64_t,
                              int64_t, std::optional<double>, int, int, int, bool>;

kernels::TopkReduceLaunch sum_from(const SumNumbers& numbers) {
  return std::apply(topk_launch, numbers);
}

void bind_calls(py::class_<DeviceGroupHandle>& group) {
  group
      .def("prepare",
           [](const DeviceGroupHandle& self, py::object plan, py::object buffer) {
             return prepare_call(self.group(), std::move(plan), std::move(buffer));
           })
      .def("run",
           [](DeviceGroupHandle& self, const DevicePlan& plan, Buffer& buffer, size_t offset,
              const CallNumbers& numbers) {
             const DeviceCall call = call_from(numbers);
             return self.engine(
                 [&](DeviceEngine& engine) { return engine.run(plan, buffer, offset, call); });
           })
      .def("run_from",
           [](DeviceGroupHandle& self, const DevicePlan& plan, uintptr_t input,
              const CallNumbers& numbers) {
             const DeviceCall call = call_from(numbers);
             return self.engine([&](DeviceEngine& engine) {
               return engine.run(plan, pointer<const void>(input), call);
             });
           })
      .def("combine",
           [](DeviceGroupHandle& self, const DevicePlan& plan, const SumNumbers& sum,
              const CallNumbers& numbers) {
             const kernels::TopkReduceLaunch launch = sum_from(sum);
             const DeviceCall call = call_from(numbers);
             return self.engine(
                 [&](DeviceEngine& engine) { return engine.combine(plan, launch, call); });
           })
      .def("fill_out",
           [](DeviceGroupHandle& self, const DevicePlan& plan, const SumNumbers& sum,
              const CallNumbers& numbers) {
             const kernels::TopkReduceLaunch launch = sum_from(sum);
             const DeviceCall call = call_from(numbers);
             self.engine([&](DeviceEngine& engine) { engine.fill_out(plan, launch, call); });
           })
      .def("begin_outside", &at_outside_call<&DeviceEngine::begin_outside>)
      .def("end_outside", &at_outside_call<&DeviceEngine::end_outside>)
      .def("finish",
           [](DeviceGroupHandle& self, const DevicePlan& plan, const CallNumbers& numbers) {
             const DeviceCall call = call_from(numbers);
             self.engine([&](DeviceEngine& engine) { engine.finish(plan, call); });
           })
      .def("make_routing",
           [](DeviceGroupHandle& self, uintptr_t ids, bool ids_are_64bit, uintptr_t expert_to_rank,
              int64_t rows, int64_t slots, int64_t experts) {
             const kernels::RouteMaskLaunch view{
                 .ids = pointer<const void>(ids),
                 .expert_to_rank = pointer<const int32_t>(expert_to_rank),
                 .rows = rows,
                 .slots = slots,
                 .experts = experts,
                 .ids_are_64bit = ids_are_64bit};
             return self.engine([&](DeviceEngine& engine) { return engine.make_routing(view); });
           })
      .def("needs_memory",
           [](DeviceGroupHandle& self, const DeviceRouting& routing, uintptr_t stream) {
             return self.engine([&](DeviceEngine& engine) {
               return engine.needs_memory(routing, stream_from(stream));
             });
           })
      .def("give",
           [](DeviceGroupHandle& self, DeviceRouting& routing, uintptr_t memory, uintptr_t stream) {
             self.engine([&](DeviceEngine& engine) {
               engine.give(routing, pointer<uint64_t>(memory), stream_from(stream));
             });
           })
      .def("topk_reduce",
           [](DeviceGroupHandle& self, uintptr_t input, uintptr_t weights, uintptr_t index,
              uintptr_t output, int64_t tokens, int64_t slots, int64_t hidden, int64_t pairs,
              std::optional<double> scale, int input_type, int output_type, int weights_type,
              bool index_is_64bit, uintptr_t stream) {
             const auto launch =
                 topk_launch(input, weights, index, output, tokens, slots, hidden, pairs, scale,
                             input_type, output_type, weights_type, index_is_64bit);
             self.engine(
                 [&](DeviceEngine& engine) { engine.topk_reduce(launch, stream_from(stream)); });
           })
      .def("explain", &explain);
}

void bind_memory(py::class_<DeviceGroupHandle>& group) {
  group
      .def("acquire",
           [](DeviceGroupHandle& self, int role, int lane, size_t nbytes, uintptr_t stream) {
             return self.engine([&](DeviceEngine& engine) {
               return engine.acquire(role_from(role), lane, nbytes, stream_from(stream));
             });
           })
      .def("rearm",
           [](DeviceGroupHandle& self, Buffer& buffer, uintptr_t stream) {
             return self.engine(
                 [&](DeviceEngine& engine) { return engine.rearm(buffer, stream_from(stream)); });
           })
      .def("refusal",
           [](DeviceGroupHandle& self) {
             return self.engine([](DeviceEngine& engine) { return engine.refusal(); });
           })
      .def("find",
           [](DeviceGroupHandle& self,
              uintptr_t address) -> std::optional<std::pair<std::shared_ptr<Buffer>, size_t>> {
             size_t offset = 0;
             auto buffer = self.engine([&](DeviceEngine& engine) {
               return engine.find(pointer<const void>(address), &offset);
             });
             if (buffer == nullptr) return std::nullopt;
             return std::pair(std::move(buffer), offset);
           })
      .def("overlaps",
           [](DeviceGroupHandle& self, uintptr_t address, size_t nbytes) {
             return self.engine([&](DeviceEngine& engine) {
               return engine.overlaps(pointer<const void>(address), nbytes);
             });
           })
      .def("why_no_output",
           [](DeviceGroupHandle& self, uintptr_t address, size_t nbytes, int lane) {
             return self.engine([&](DeviceEngine& engine) {
               return engine.why_no_output(pointer<const void>(address), nbytes, lane);
             });
           })
      .def("reserve",
           [](DeviceGroupHandle& self, const std::vector<int>& numbers, int lanes, size_t nbytes,
              bool pin) {
             std::vector<Role> roles;
             for (const int number : numbers) roles.push_back(role_from(number));
             return self.engine(
                 [&](DeviceEngine& engine) { return engine.reserve(roles, lanes, nbytes, pin); });
           })
      .def("retain",
           [](DeviceGroupHandle& self, Buffer& buffer) {
             self.engine([&](DeviceEngine& engine) { engine.retain(buffer); });
           })
      .def("release_graphs", &at_once<&DeviceEngine::release_graphs>)
      .def("trim", &at_once<&DeviceEngine::trim>)
      .def("suspend", &at_once<&DeviceEngine::suspend>)
      .def("resume", &at_once<&DeviceEngine::resume>);
}

}  // namespace

void bind_device_group(py::module_& module) {
  bind_device_config(module);
  py::class_<DevicePlan>(module, "DevicePlan")
      .def(py::init([](Plan plan, bool device_sizes, int64_t padded_to) {
             plan.device_sizes = device_sizes;
             plan.padded_to = padded_to;
             return std::make_unique<DevicePlan>(std::move(plan));
           }),
           py::arg("plan"), py::arg("device_sizes") = false, py::arg("padded_to") = 0)
      .def_property_readonly("text", [](const DevicePlan& p) { return p.plan.text; });
  const py::class_<DeviceRouting> routing(module, "DeviceRouting");
  py::class_<DeviceGroupHandle> group(module, "DeviceGroup");
  group
      .def(py::init<int, int, const DeviceGroupConfig&, py::object>(), py::arg("rank"),
           py::arg("world"), py::arg("config"), py::arg("gather"))
      .def("describe",
           [](const DeviceGroupHandle& self) {
             struct Facts {
               const Device* device;
               int version;
               std::string path;
               std::string no_communicator;
               std::string no_windows;
               std::string no_direct;
               std::string no_peers;
               std::string maker;
             };
             const Facts facts = self.call([](DeviceGroup& it) {
               return Facts{
                   &it.device(),           it.nccl_version(),         it.nccl_path(),
                   it.no_communicator(),   it.engine().no_windows(),  it.engine().no_direct(),
                   it.engine().no_peers(), it.engine().window_maker()};
             });
             py::dict result = properties_of(*facts.device);
             result["nccl"] = facts.version == 0 ? "" : nccl_version_text(facts.version);
             result["nccl_path"] = facts.path;
             result["no_communicator"] = facts.no_communicator;
             result["no_windows"] = facts.no_windows;
             result["no_direct"] = facts.no_direct;
             result["no_peers"] = facts.no_peers;
             result["windows"] = facts.maker;
             return result;
           })
      .def("check",
           [](DeviceGroupHandle& self) {
             self.engine([](DeviceEngine& engine) { engine.check(); });
           })
      .def("poison",
           [](DeviceGroupHandle& self, const std::string& reason) {
             self.engine([&](DeviceEngine& engine) { engine.poison(reason); });
           })
      .def("stats", &stats_of)
      .def("close", &DeviceGroupHandle::close);
  bind_calls(group);
  bind_memory(group);
}

}  // namespace symmoe::bindings
