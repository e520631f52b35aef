#include "bindings/device.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "collectives/device/caller.h"
#include "collectives/device/cost_model.h"
#include "collectives/device/faults.h"
#include "runtime/nccl/capabilities.h"
#include "runtime/nccl/library.h"
#include "runtime/stream.h"

namespace py = pybind11;

namespace symmoe::bindings {

kernels::TopkReduceLaunch topk_launch(uintptr_t input, uintptr_t weights, uintptr_t index,
                                      uintptr_t output, int64_t tokens, int64_t slots,
                                      int64_t hidden, int64_t pairs, std::optional<double> scale,
                                      int input_type, int output_type, int weights_type,
                                      bool index_is_64bit) {
  return {.input = pointer<const void>(input),
          .weights = pointer<const void>(weights),
          .index = pointer<const void>(index),
          .output = pointer<void>(output),
          .tokens = tokens,
          .slots = slots,
          .hidden = hidden,
          .pairs = pairs,
          .scale = fp32_of(scale.value_or(1.0)),
          .has_scale = scale.has_value(),
          .input_type = dtype_from(input_type),
          .output_type = dtype_from(output_type),
          .weights_type = dtype_from(weights_type),
          .index_is_64bit = index_is_64bit,
          .routing = {}};
}

py::dict properties_of(const Device& device) {
  const DeviceProperties& properties = device.properties();
  py::dict result;
  result["kind"] = device.kind();
  result["name"] = properties.name;
  result["ordinal"] = device.ordinal();
  result["multiprocessors"] = properties.multiprocessors;
  result["capability"] = std::pair(properties.major, properties.minor);
  result["total_bytes"] = properties.total_bytes;
  return result;
}

namespace {

// A device without a group: for the top-k sum alone.
class LoneDevice {
 public:
  LoneDevice(const std::string& back_end, int ordinal)
      : LoneDevice(Device::open(back_end, ordinal)) {}

  const Device& device() const { return *device_; }

  void topk_reduce(kernels::TopkReduceLaunch launch, StreamHandle stream) {
    faults_.raise("topk_reduce");
    require_memory({"topk_reduce"}, launch);
    require_aligned({"topk_reduce"}, launch);
    launch.fault = faults_.record();
    device_->topk_reduce(launch, stream);
  }
  void apply_epilogue(const kernels::EpilogueLaunch& launch, StreamHandle stream) const {
    require_epilogue({"apply_epilogue"}, launch.steps, launch.type, launch.rows, launch.hidden);
    require_aligned({"apply_epilogue"}, "rows", launch.input, size_of(launch.type));
    device_->apply_epilogue(launch, stream);
  }
  void check() { faults_.raise("check"); }
  Stream make_stream() const { return Stream(device_); }

 private:
  // It is made when first needed, which may be inside of a capture.
  explicit LoneDevice(const std::shared_ptr<Device>& device)
      : LoneDevice(device, RelaxedCapture(*device)) {}
  LoneDevice(const std::shared_ptr<Device>& device, const RelaxedCapture&)
      : device_(device), faults_(device_) {}

  std::shared_ptr<Device> device_;
  Faults faults_;
};

py::dict costs_of(int major) {
  const LinkRates rates = rates_of(major);
  py::dict costs;
  costs["start_us"] = rates.start_us;
  costs["link_bytes_per_us"] = rates.link_bytes_per_us;
  costs["memory_bytes_per_us"] = rates.memory_bytes_per_us;
  costs["launch_us"] = kLaunchUs;
  costs["copy_us"] = kCopyUs;
  costs["fused_memory_share"] = kFusedMemoryShare;
  return costs;
}

// Of equally many rows of each rank.
double predict(const std::string& path, int major, int world, size_t bytes, int slots,
               bool from_sum, bool routed) {
  for (int number = 0; number < kPathKinds; ++number) {
    const auto kind = static_cast<PathKind>(number);
    if (path != path_of(kind).name()) continue;
    return predicted_us(kind,
                        {.world = world,
                         .bytes = bytes,
                         .total_bytes = bytes * static_cast<size_t>(world),
                         .form = {.from_sum = from_sum, .routed = routed, .slots = slots}},
                        rates_of(major));
  }
  throw InvalidArgument("there is no path " + path);
}

}  // namespace

void bind_device(py::module_& module) {
  py::class_<Stream>(module, "Stream").def_property_readonly("handle", [](const Stream& s) {
    return reinterpret_cast<uintptr_t>(s.handle());
  });
  py::class_<LoneDevice>(module, "Device")
      .def(py::init<const std::string&, int>(), py::arg("back_end"), py::arg("ordinal"))
      .def_property_readonly("properties",
                             [](const LoneDevice& d) { return properties_of(d.device()); })
      .def("check", &LoneDevice::check)
      .def("shared_refusal", [](const LoneDevice& d) { return d.device().shared_refusal(); })
      .def("make_stream", &LoneDevice::make_stream)
      .def("synchronize",
           [](const LoneDevice& self, uintptr_t stream) {
             const py::gil_scoped_release release;
             self.device().synchronize(stream_from(stream));
           })
      .def("topk_reduce",
           [](LoneDevice& self, uintptr_t input, uintptr_t weights, uintptr_t index,
              uintptr_t output, int64_t tokens, int64_t slots, int64_t hidden, int64_t pairs,
              std::optional<double> scale, int input_type, int output_type, int weights_type,
              bool index_is_64bit, uintptr_t stream) {
             const auto launch =
                 topk_launch(input, weights, index, output, tokens, slots, hidden, pairs, scale,
                             input_type, output_type, weights_type, index_is_64bit);
             const py::gil_scoped_release release;
             self.topk_reduce(launch, stream_from(stream));
           })
      .def("apply_epilogue",
           [](const LoneDevice& self, const kernels::Epilogue& steps, uintptr_t input,
              uintptr_t output, int64_t rows, int64_t hidden, int dtype, uintptr_t stream) {
             const kernels::EpilogueLaunch launch{.input = pointer<const void>(input),
                                                  .output = pointer<void>(output),
                                                  .steps = steps,
                                                  .rows = rows,
                                                  .hidden = hidden,
                                                  .type = dtype_from(dtype)};
             const py::gil_scoped_release release;
             self.apply_epilogue(launch, stream_from(stream));
           });
  module.def("device_costs", &costs_of, py::arg("major"));
  module.def("predicted_us", &predict, py::arg("path"), py::arg("major"), py::arg("world"),
             py::arg("nbytes"), py::arg("slots"), py::arg("from_sum"), py::arg("routed"));
  module.def(
      "nccl_description",
      [](const std::string& setting, const std::vector<std::string>& wheels, bool allow_unsafe) {
        const auto library = NcclLibrary::open(NcclLibrary::usual_candidates(setting, wheels));
        const NcclCapabilities found =
            capabilities_of(library->version(), library->functions(), allow_unsafe);
        py::dict result;
        result["version"] = nccl_version_text(library->version());
        result["path"] = library->path();
        result["origin"] = library->origin();
        result["no_windows"] = found.no_windows;
        result["no_direct"] = found.no_direct;
        result["no_peer_pointers"] = found.no_peer_pointers;
        return result;
      },
      py::arg("setting"), py::arg("wheels"), py::arg("allow_unsafe"));
}

}  // namespace symmoe::bindings
