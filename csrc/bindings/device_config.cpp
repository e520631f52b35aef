#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/device.h"
#include "collectives/device/device_group.h"

namespace py = pybind11;

namespace symmoe::bindings {

void bind_device_config(py::module_& module) {
  py::class_<DeviceGroupConfig>(module, "DeviceGroupConfig")
      .def(py::init<>())
      .def_readwrite("back_end", &DeviceGroupConfig::back_end)
      .def_readwrite("ordinal", &DeviceGroupConfig::ordinal)
      .def_readwrite("allow_unsafe_nccl", &DeviceGroupConfig::allow_unsafe_nccl)
      .def_readwrite("no_windows", &DeviceGroupConfig::no_windows)
      .def_readwrite("pids", &DeviceGroupConfig::pids)
      .def("set_borrowed",
           [](DeviceGroupConfig& c, uintptr_t comm) { c.borrowed = pointer<void>(comm); })
      .def("set_nccl",
           [](DeviceGroupConfig& c, const std::string& setting,
              const std::vector<std::string>& wheels) {
             c.nccl = NcclLibrary::usual_candidates(setting, wheels);
           })
      .def("set_pool",
           [](DeviceGroupConfig& c, size_t granularity, size_t max_buffer_bytes) {
             if (granularity == 0) throw InvalidArgument("granularity_bytes must be positive");
             c.engine.pool.granularity = granularity;
             c.engine.pool.max_buffer_bytes = max_buffer_bytes;
           })
      .def("set_waits",
           [](DeviceGroupConfig& c, int64_t deadline_ns, int64_t look_ns) {
             c.engine.deadline_ns = deadline_ns;
             c.engine.look_ns = look_ns;
           })
      .def("set_paths",
           [](DeviceGroupConfig& c, const std::vector<int>& paths) {
             c.engine.paths = 0;
             for (const int path : paths) {
               c.engine.paths |= bit_of(enum_from<PathKind>(path, kPathKinds, "path"));
             }
           })
      .def("set_windows",
           [](DeviceGroupConfig& c, int maker) {
             c.engine.windows = enum_from<WindowMaker>(maker, kWindowMakers, "maker of windows");
           })
      .def("set_check", [](DeviceGroupConfig& c, bool check) { c.engine.check = check; })
      .def("set_tuning", [](DeviceGroupConfig& c,
                            const std::vector<std::tuple<int, int, size_t, double>>& lines) {
        std::vector<TunedTime> times;
        for (const auto& [path, dtype, bytes, us] : lines) {
          times.push_back(
              {enum_from<PathKind>(path, kPathKinds, "path"), dtype_from(dtype), bytes, us});
        }
        c.engine.tuning = Tuning(std::move(times));
      });
}

}  // namespace symmoe::bindings
