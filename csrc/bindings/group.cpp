#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/group_handle.h"
#include "bindings/routing.h"

namespace py = pybind11;

namespace symmoe::bindings {
namespace {

Role role_from(int number) { return enum_from<Role>(number, kRoles, "role"); }

// A listener is used up by the group that it was made for.
struct ListenerHandle {
  std::optional<Listener> listener{std::in_place};

  std::string address() const {
    if (!listener) throw InvalidArgument("this listener belongs to a group already");
    return listener->address();
  }
  Listener take() {
    if (!listener) throw InvalidArgument("this listener belongs to a group already");
    Listener taken = std::move(*listener);
    listener.reset();
    return taken;
  }
};

// Lets signal handlers run while a call waits without the interpreter lock.
void let_signals_in() {
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw Interrupted("interrupted by a signal");
}

std::unique_ptr<GroupHandle> make_group(int rank, int world,
                                        const std::vector<std::string>& addresses,
                                        const std::string& token, ListenerHandle* listener,
                                        EngineConfig config) {
  config.interrupt = &let_signals_in;
  Listener own = listener == nullptr ? Listener() : listener->take();
  auto handle = std::make_unique<GroupHandle>();
  const py::gil_scoped_release release;
  handle->hold(
      std::make_shared<SharedGroup>(rank, world, addresses, token, std::move(own), config));
  return handle;
}

Plan make_plan(int kind, int role, int lane, int dtype, int64_t hidden, int64_t rows,
               std::vector<int64_t> begins, std::vector<int64_t> counts, int rank, std::string text,
               bool routed) {
  Plan plan;
  plan.kind = enum_from<Plan::Kind>(kind, Plan::kKinds, "kind of call");
  plan.role = role_from(role);
  plan.lane = lane;
  plan.dtype = dtype_from(dtype);
  plan.hidden = hidden;
  plan.rows = rows;
  plan.begins = std::move(begins);
  plan.counts = std::move(counts);
  plan.rank = rank;
  plan.text = std::move(text);
  plan.routed = routed;
  plan.seal();
  return plan;
}

py::dict stats_of(const GroupHandle& handle) {
  struct Numbers {
    PoolStats pool;
    size_t peer_bytes;
    uint64_t pull, staged, routed, routed_staged, gather, gather_staged;
  };
  const Numbers numbers = handle.with_group([](SharedGroup& group) {
    const CallCounts& calls = group.engine().counts();
    return Numbers{.pool = group.engine().pool_stats(),
                   .peer_bytes = group.peer_bytes(),
                   .pull = calls.pull.load(),
                   .staged = calls.staged.load(),
                   .routed = calls.routed.load(),
                   .routed_staged = calls.routed_staged.load(),
                   .gather = calls.gather.load(),
                   .gather_staged = calls.gather_staged.load()};
  });
  const PoolStats& pool = numbers.pool;
  py::dict stats;
  stats["live_bytes"] = pool.live_bytes;
  stats["stage_bytes"] = pool.stage_bytes;
  stats["retired_bytes"] = pool.retired_bytes;
  stats["view_bytes"] = pool.view_bytes;
  stats["pinned_bytes"] = pool.pinned_bytes;
  stats["peer_bytes"] = numbers.peer_bytes;
  stats["peak_bytes"] = pool.peak_bytes;
  stats["growths"] = pool.growths;
  stats["buffers"] = pool.buffers;
  stats["calls_pull"] = numbers.pull;
  stats["calls_staged"] = numbers.staged;
  stats["calls_routed"] = numbers.routed;
  stats["calls_routed_staged"] = numbers.routed_staged;
  stats["calls_gather"] = numbers.gather;
  stats["calls_gather_staged"] = numbers.gather_staged;
  return stats;
}

void bind_config(py::module_& module) {
  py::class_<EngineConfig>(module, "GroupConfig")
      .def(py::init<>())
      .def_property(
          "deadline_ns", [](const EngineConfig& c) { return c.wait.deadline_ns; },
          [](EngineConfig& c, int64_t value) { c.wait.deadline_ns = value; })
      .def_property(
          "spin_ns", [](const EngineConfig& c) { return c.wait.spin_ns; },
          [](EngineConfig& c, int64_t value) { c.wait.spin_ns = value; })
      .def_property(
          "granularity_bytes", [](const EngineConfig& c) { return c.pool.granularity; },
          [](EngineConfig& c, size_t value) {
            if (value == 0) throw InvalidArgument("granularity_bytes must be positive");
            c.pool.granularity = value;
          })
      .def_property(
          "max_buffer_bytes", [](const EngineConfig& c) { return c.pool.max_buffer_bytes; },
          [](EngineConfig& c, size_t value) { c.pool.max_buffer_bytes = value; })
      .def_property(
          "stall_ns", [](const EngineConfig& c) { return c.stall_ns; },
          [](EngineConfig& c, int64_t value) {
            if (value < 0) throw InvalidArgument("stall_ns must not be negative");
            c.stall_ns = value;
          })
      .def_readwrite("check", &EngineConfig::check);
}

void bind_buffer(py::module_& module) {
  py::class_<Buffer, std::shared_ptr<Buffer>>(module, "Buffer", py::buffer_protocol())
      .def_property_readonly(
          "address", [](const Buffer& b) { return reinterpret_cast<uintptr_t>(b.window.base); })
      .def_property_readonly("bytes", [](const Buffer& b) { return b.window.bytes; })
      .def_property_readonly("retired", [](const Buffer& b) { return b.retired.load(); })
      .def_property_readonly("armed", [](const Buffer& b) { return b.armed.load(); })
      .def_buffer([](Buffer& b) {
        return py::buffer_info(reinterpret_cast<uint8_t*>(b.window.base),
                               static_cast<py::ssize_t>(b.window.bytes), /*readonly=*/false);
      });
}

void bind_calls(py::class_<GroupHandle>& group) {
  group
      .def(
          "reduce_scatter",
          [](GroupHandle& self, const Plan& plan, Buffer& buffer, size_t offset, uintptr_t output,
             int threads, const Routing* routing, const kernels::Epilogue* epilogue) {
            return self.call([&](Engine& engine) {
              return engine.reduce_scatter(plan, buffer, offset, pointer<void>(output), threads,
                                           routing, epilogue);
            });
          },
          py::arg("plan"), py::arg("buffer"), py::arg("offset"), py::arg("output"),
          py::arg("threads"), py::arg("routing") = py::none(), py::arg("epilogue") = py::none())
      .def(
          "reduce_scatter_staged",
          [](GroupHandle& self, const Plan& plan, uintptr_t input, uintptr_t output, int threads,
             const Routing* routing, const kernels::Epilogue* epilogue) {
            return self.call([&](Engine& engine) {
              return engine.reduce_scatter_staged(plan, pointer<const void>(input),
                                                  pointer<void>(output), threads, routing,
                                                  epilogue);
            });
          },
          py::arg("plan"), py::arg("input"), py::arg("output"), py::arg("threads"),
          py::arg("routing") = py::none(), py::arg("epilogue") = py::none())
      .def("all_gather",
           [](GroupHandle& self, const Plan& plan, Buffer& buffer, size_t offset, uintptr_t output,
              int threads) {
             return self.call([&](Engine& engine) {
               return engine.all_gather(plan, buffer, offset, pointer<void>(output), threads);
             });
           })
      .def("all_gather_staged",
           [](GroupHandle& self, const Plan& plan, uintptr_t input, uintptr_t output, int threads) {
             return self.call([&](Engine& engine) {
               return engine.all_gather_staged(plan, pointer<const void>(input),
                                               pointer<void>(output), threads);
             });
           })
      .def("agree",
           [](GroupHandle& self, int role, int lane, const std::string& text) {
             self.call([&](Engine& engine) { engine.agree(role_from(role), lane, text); });
           })
      .def("check_call", [](GroupHandle& self, int lane, const std::string& text) {
        self.call([&](Engine& engine) { engine.check_call(lane, text); });
      });
}

void bind_memory(py::class_<GroupHandle>& group) {
  group
      .def("acquire",
           [](GroupHandle& self, int role, int lane, size_t nbytes) {
             return self.call(
                 [&](Engine& engine) { return engine.acquire(role_from(role), lane, nbytes); });
           })
      .def("rearm",
           [](GroupHandle& self, Buffer& buffer) {
             return self.call([&](Engine& engine) { return engine.rearm(buffer); });
           })
      .def("refusal",
           [](GroupHandle& self) {
             return self.call([](Engine& engine) { return engine.refusal(); });
           })
      .def("find",
           [](GroupHandle& self,
              uintptr_t address) -> std::optional<std::pair<std::shared_ptr<Buffer>, size_t>> {
             size_t offset = 0;
             auto buffer = self.call([&](Engine& engine) {
               return engine.find(pointer<const void>(address), &offset);
             });
             if (buffer == nullptr) return std::nullopt;
             return std::pair(std::move(buffer), offset);
           })
      .def("overlaps",
           [](GroupHandle& self, uintptr_t address, size_t nbytes) {
             return self.call([&](Engine& engine) {
               return engine.overlaps(pointer<const void>(address), nbytes);
             });
           })
      .def("why_no_output",
           [](GroupHandle& self, uintptr_t address, size_t nbytes, int lane) {
             return self.call([&](Engine& engine) {
               return engine.why_no_output(pointer<const void>(address), nbytes, lane);
             });
           })
      .def("reserve",
           [](GroupHandle& self, const std::vector<int>& numbers, int lanes, size_t nbytes,
              bool pin) {
             std::vector<Role> roles;
             for (const int number : numbers) roles.push_back(role_from(number));
             return self.call(
                 [&](Engine& engine) { return engine.reserve(roles, lanes, nbytes, pin); });
           })
      .def("retain",
           [](GroupHandle& self, Buffer& buffer) {
             self.call([&](Engine& engine) { engine.retain(buffer); });
           })
      .def("release_graphs",
           [](GroupHandle& self) { self.call([](Engine& engine) { engine.release_graphs(); }); })
      .def("trim", [](GroupHandle& self) { self.call([](Engine& engine) { engine.trim(); }); });
}

}  // namespace

void bind_group(py::module_& module) {
  bind_config(module);
  bind_buffer(module);
  py::class_<ListenerHandle>(module, "Listener")
      .def(py::init<>())
      .def_property_readonly("address", &ListenerHandle::address);
  py::class_<Plan, std::shared_ptr<Plan>>(module, "Plan")
      .def(py::init(&make_plan), py::arg("kind"), py::arg("role"), py::arg("lane"),
           py::arg("dtype"), py::arg("hidden"), py::arg("rows"), py::arg("begins"),
           py::arg("counts"), py::arg("rank"), py::arg("text"), py::arg("routed") = false)
      .def_readonly("text", &Plan::text);
  bind_routing(module);

  py::class_<GroupHandle> group(module, "Group");
  group
      .def(py::init(&make_group), py::arg("rank"), py::arg("world"), py::arg("addresses"),
           py::arg("token"), py::arg("listener").none(true), py::arg("config"))
      .def("check", [](GroupHandle& self) { self.call([](Engine& engine) { engine.check(); }); })
      .def("poison",
           [](GroupHandle& self, const std::string& reason) {
             self.call([&](Engine& engine) { engine.poison(PoisonNote::Kind::kOther, reason); });
           })
      .def("stats", &stats_of)
      .def("close", &GroupHandle::close);
  bind_calls(group);
  bind_memory(group);
}

}  // namespace symmoe::bindings
