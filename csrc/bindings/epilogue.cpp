#include "kernels/cpu/epilogue.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "bindings/bindings.h"

namespace py = pybind11;

namespace symmoe::bindings {
namespace {

kernels::Epilogue make_epilogue(uintptr_t shared, std::optional<double> scale, bool scale_shared,
                                uintptr_t residual, uintptr_t norm_weight, int weight_type,
                                double eps, int quantized, uintptr_t scales) {
  return {
      .shared = pointer<const void>(shared),
      .residual = pointer<void>(residual),
      .norm_weight = pointer<const void>(norm_weight),
      .scales = pointer<float>(scales),
      .scale = fp32_of(scale.value_or(1.0)),
      .eps = fp32_of(eps),
      .has_scale = scale.has_value(),
      .scale_shared = scale_shared,
      .weight_type = dtype_from(weight_type),
      .quantized = enum_from<kernels::Quantized>(quantized, kernels::kQuantized, "quantised type")};
}

void apply_epilogue(const kernels::Epilogue& steps, uintptr_t input, uintptr_t output, int64_t rows,
                    int64_t hidden, int dtype, int threads) {
  const void* const source = pointer<const void>(input);
  const kernels::EpilogueReduceArgs args{.sources = &source,
                                         .ranks = 1,
                                         .output = pointer<void>(output),
                                         .rows = rows,
                                         .hidden = hidden,
                                         .type = dtype_from(dtype),
                                         .steps = steps};
  const py::gil_scoped_release release;
  kernels::reduce_with_epilogue(args, threads);
}

}  // namespace

void bind_epilogue(py::module_& module) {
  py::class_<kernels::Epilogue>(module, "Epilogue")
      .def(py::init(&make_epilogue), py::arg("shared"), py::arg("scale"), py::arg("scale_shared"),
           py::arg("residual"), py::arg("norm_weight"), py::arg("weight_type"), py::arg("eps"),
           py::arg("quantized"), py::arg("scales"))
      .def("apply", &apply_epilogue, py::arg("input"), py::arg("output"), py::arg("rows"),
           py::arg("hidden"), py::arg("dtype"), py::arg("threads"));
}

}  // namespace symmoe::bindings
