// The binding of KnownCalls.
#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/fast_function.h"
#include "bindings/known_calls.h"

namespace py = pybind11;

namespace symmoe::bindings {
namespace {

using Holder = std::shared_ptr<KnownCalls>;

PyObject* run_combine(KnownCalls& calls, Given given) {
  return calls.run_combine({.input = given[0],
                            .out = given[2],
                            .routing = given[11],
                            .sizes = given[5],
                            .padded_to = given[6],
                            .lane = given[7],
                            .stream = given[8],
                            .threads = given[9],
                            .cores = given[10],
                            .epilogue = given[12]},
                           /*weights=*/given[1], /*index=*/given[3], /*scale=*/given[4]);
}

template <Plan::Kind kKind>
PyObject* run_rows(KnownCalls& calls, Given given) {
  return calls.run_rows(kKind, {.input = given[0],
                                .out = given[1],
                                .routing = given[8],
                                .sizes = given[2],
                                .padded_to = given[3],
                                .lane = given[4],
                                .stream = given[5],
                                .threads = given[6],
                                .cores = given[7],
                                .epilogue = given[9]});
}

template <Plan::Kind kKind>
py::object rows_function(Holder calls) {
  return fast_function<KnownCalls, &run_rows<kKind>, 10>(Plan::name_of(kKind), std::move(calls));
}

struct KnownWindow {
  Holder calls;
  AcquiredWindow acquired;
};

PyObject* acquire_again(KnownWindow& window, Given) {
  return window.calls->acquire_again(window.acquired);
}

void remember(KnownCalls& calls, const std::shared_ptr<Plan>& plan, py::object input,
              py::object output, py::object routing, py::object sizes, py::object padded_to,
              py::object epilogue, const kernels::Epilogue* steps, py::object new_output) {
  calls.remember({.input = std::move(input),
                  .output = std::move(output),
                  .weights = py::none(),
                  .index = py::none(),
                  .routing = std::move(routing),
                  .sizes = std::move(sizes),
                  .padded_to = std::move(padded_to),
                  .epilogue = std::move(epilogue),
                  .steps = steps,
                  .new_output = std::move(new_output)},
                 plan);
}

void remember_combine(KnownCalls& calls, const std::shared_ptr<Plan>& plan, py::object expert_out,
                      py::object output, py::object weights, py::object index, py::object routing,
                      int64_t slots, int64_t pairs, int weights_type, bool index_is_64bit,
                      py::object sizes, py::object padded_to, py::object epilogue,
                      const kernels::Epilogue* steps, py::object new_output) {
  const kernels::TopkReduceArgs sum{.tokens = plan->rows,
                                    .slots = slots,
                                    .hidden = plan->hidden,
                                    .pairs = pairs,
                                    .input_type = plan->dtype,
                                    .output_type = plan->dtype,
                                    .weights_type = dtype_from(weights_type),
                                    .index_is_64bit = index_is_64bit};
  calls.remember_combine({.input = std::move(expert_out),
                          .output = std::move(output),
                          .weights = std::move(weights),
                          .index = std::move(index),
                          .routing = std::move(routing),
                          .sizes = std::move(sizes),
                          .padded_to = std::move(padded_to),
                          .epilogue = std::move(epilogue),
                          .steps = steps,
                          .new_output = std::move(new_output)},
                         plan, sum);
}

py::object remember_window(const Holder& calls, const std::shared_ptr<Buffer>& buffer,
                           const py::object& tensor) {
  auto acquired = calls->acquired(buffer, tensor);
  if (!acquired) return py::none();
  return fast_function<KnownWindow, &acquire_again, 0>(
      "acquire_again", std::make_shared<KnownWindow>(KnownWindow{calls, std::move(*acquired)}));
}

}  // namespace

void bind_known_calls(py::module_& module) {
  py::class_<KnownCalls, Holder>(module, "KnownCalls")
      .def(py::init([](py::object given, py::type routing, py::type epilogue, py::type tensor,
                       py::type parameter, py::object is_grad_enabled) {
             return std::make_shared<KnownCalls>(
                 std::move(given), std::move(routing),
                 EpilogueReader::Types{std::move(tensor), std::move(parameter), std::move(epilogue),
                                       std::move(is_grad_enabled)});
           }),
           py::arg("group"), py::arg("routing_type"), py::arg("epilogue_type"),
           py::arg("tensor_type"), py::arg("parameter_type"), py::arg("is_grad_enabled"))
      .def("remember", &remember, py::arg("plan"), py::arg("input"), py::arg("output"),
           py::arg("routing"), py::arg("sizes"), py::arg("padded_to"), py::arg("epilogue"),
           py::arg("steps"), py::arg("new_output"))
      .def("remember_combine", &remember_combine, py::arg("plan"), py::arg("expert_out"),
           py::arg("output"), py::arg("weights"), py::arg("index"), py::arg("routing"),
           py::arg("slots"), py::arg("pairs"), py::arg("weights_type"), py::arg("index_is_64bit"),
           py::arg("sizes"), py::arg("padded_to"), py::arg("epilogue"), py::arg("steps"),
           py::arg("new_output"))
      .def("remember_window", &remember_window, py::arg("buffer"), py::arg("tensor"))
      .def("forget", &KnownCalls::forget)
      .def_property_readonly("reduce_scatter", &rows_function<Plan::Kind::kReduceScatter>)
      .def_property_readonly("all_gather", &rows_function<Plan::Kind::kAllGather>)
      .def_property_readonly("combine", [](Holder calls) {
        return fast_function<KnownCalls, &run_combine, 13>("combine", std::move(calls));
      });
}

}  // namespace symmoe::bindings
