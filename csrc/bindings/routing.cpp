#include "bindings/routing.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <vector>

#include "bindings/bindings.h"

namespace py = pybind11;

namespace symmoe::bindings {
namespace {

std::shared_ptr<Routing> make_routing(int64_t rows, const std::vector<int64_t>& begins,
                                      const std::vector<int64_t>& counts, uintptr_t ids,
                                      bool ids_are_64bit, int64_t slots, uintptr_t expert_to_rank,
                                      int64_t experts) {
  const py::gil_scoped_release release;
  return std::make_shared<Routing>(
      rows, begins, counts,
      kernels::SlotRouting{.ids = pointer<const void>(ids),
                           .expert_to_rank = pointer<const void>(expert_to_rank),
                           .slots = slots,
                           .experts = experts,
                           .world = static_cast<int>(counts.size()),
                           .ids_are_64bit = ids_are_64bit});
}

}  // namespace

kernels::TopkReduceArgs sum_from(uintptr_t input, uintptr_t weights, uintptr_t index,
                                 uintptr_t output, int64_t tokens, int64_t slots, int64_t hidden,
                                 int64_t pairs, std::optional<double> scale, int input_type,
                                 int output_type, int weights_type, bool index_is_64bit) {
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
          .index_is_64bit = index_is_64bit};
}

void bind_routing(py::module_& module) {
  py::class_<Routing, std::shared_ptr<Routing>>(module, "Routing")
      .def(py::init(&make_routing), py::arg("rows"), py::arg("begins"), py::arg("counts"),
           py::arg("ids"), py::arg("ids_are_64bit"), py::arg("slots"), py::arg("expert_to_rank"),
           py::arg("experts"))
      .def_property_readonly("hash", &Routing::hash)
      .def("rows_written", &Routing::rows_written, py::arg("rank"))
      .def("rows_read", &Routing::rows_read, py::arg("begin"), py::arg("count"))
      .def(
          "copy_rows",
          [](const Routing& self, int rank, uintptr_t target, uintptr_t source, size_t row_bytes,
             int threads) {
            const py::gil_scoped_release release;
            kernels::copy_routed(pointer<void>(target), pointer<const void>(source), self.masks(),
                                 rank, self.rows(), row_bytes, threads);
          },
          py::arg("rank"), py::arg("target"), py::arg("source"), py::arg("row_bytes"),
          py::arg("threads"));
}

}  // namespace symmoe::bindings
