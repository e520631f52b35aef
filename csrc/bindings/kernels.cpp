#include "kernels/cpu/kernels.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/routing.h"
#include "kernels/cpu/float_env.h"
#include "windows/own_windows.h"

namespace py = pybind11;

namespace symmoe::bindings {

float fp32_of(double value) {
  const kernels::FloatEnv env;
  const volatile double exact = value;  // volatile: not before the mode is set
  const volatile float rounded = static_cast<float>(exact);
  return rounded;
}

namespace {

void topk_reduce(uintptr_t input, uintptr_t weights, uintptr_t index, uintptr_t output,
                 int64_t tokens, int64_t slots, int64_t hidden, int64_t pairs,
                 std::optional<double> scale, int input_type, int output_type, int weights_type,
                 bool index_is_64bit, int threads, const Routing* routing, int rank) {
  kernels::TopkReduceArgs args =
      sum_from(input, weights, index, output, tokens, slots, hidden, pairs, scale, input_type,
               output_type, weights_type, index_is_64bit);
  const py::gil_scoped_release release;
  args.output_is_shared = own_windows::contain(args.output);
  std::vector<int64_t> routed_index;
  if (routing != nullptr) args = routing->sum_on(rank, args, &routed_index);
  kernels::topk_reduce(args, threads);
}

void rank_reduce(const std::vector<uintptr_t>& sources, uintptr_t output, int64_t count, int dtype,
                 int threads) {
  std::vector<const void*> pointers;
  for (const uintptr_t source : sources) pointers.push_back(pointer<const void>(source));
  const kernels::RankReduceArgs args{.sources = pointers.data(),
                                     .ranks = static_cast<int>(pointers.size()),
                                     .output = pointer<void>(output),
                                     .count = count,
                                     .type = dtype_from(dtype)};
  const py::gil_scoped_release release;
  kernels::rank_reduce(args, threads);
}

}  // namespace

void bind_kernels(py::module_& module) {
  module.def("isa_name", &kernels::isa_name);
  module.def("available_isas", &kernels::available_isas);
  module.def("set_isa", [](const std::string& name) { kernels::set_isa(name); }, py::arg("name"));
  module.def("topk_reduce", &topk_reduce, py::arg("input"), py::arg("weights"), py::arg("index"),
             py::arg("output"), py::arg("tokens"), py::arg("slots"), py::arg("hidden"),
             py::arg("pairs"), py::arg("scale"), py::arg("input_type"), py::arg("output_type"),
             py::arg("weights_type"), py::arg("index_is_64bit"), py::arg("threads"),
             py::arg("routing") = py::none(), py::arg("rank") = 0);
  module.def("rank_reduce", &rank_reduce, py::arg("sources"), py::arg("output"), py::arg("count"),
             py::arg("dtype"), py::arg("threads"));
}

}  // namespace symmoe::bindings
