#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "bindings/group_handle.h"
#include "bindings/known_arguments.h"
#include "bindings/known_epilogue.h"
#include "bindings/tensor_reader.h"
#include "collectives/plan.h"
#include "kernels/cpu/kernels.h"

namespace symmoe::bindings {

// A call that was made before, and how it runs.
struct KnownCall {
  KnownTensor input;
  KnownTensor weights;
  KnownTensor index;
  KnownTensor ids;  // of the routing, as are the experts
  KnownTensor experts;
  KnownIntegers sizes;
  KnownIntegers padded_to;
  KnownEpilogue epilogue;
  ElementType output_type;
  std::shared_ptr<const Plan> plan;
  kernels::TopkReduceArgs sum;  // of a combine; without addresses
  pybind11::object new_output;  // makes one for a call without `out`
};

// A window that acquire gave, and the tensor over it as it was then.
struct AcquiredWindow {
  std::shared_ptr<Buffer> buffer;
  pybind11::object tensor;
  KnownTensor form;
  const void* data = nullptr;
};

// The calls of a group that Python has checked once and that have the same form every time.
//
// run_rows and run_combine take a call's arguments as the user gave them. They return `out`; None
// if this is no known call, with nothing done, so that the long way through Python does it or says
// what is wrong with it; False if some rank has no window, so that all ranks must take their
// fallback now.
class KnownCalls {
 public:
  // `group` is a GroupHandle; `routing_type` is symmoe.Routing.
  KnownCalls(pybind11::object group, pybind11::type routing_type,
             const EpilogueReader::Types& types);

  // As they stood in a call that was found right, with its output. The weights are those that were
  // applied, whether given or the routing's; all but the input and the output may be None. `steps`
  // are the epilogue's, null without one.
  struct Form {
    pybind11::object input, output, weights, index, routing, sizes, padded_to, epilogue;
    const kernels::Epilogue* steps;
    pybind11::object new_output;
  };
  void remember(const Form& form, const std::shared_ptr<const Plan>& plan);
  void remember_combine(const Form& form, const std::shared_ptr<const Plan>& plan,
                        const kernels::TopkReduceArgs& sum);
  void forget();
  // Nothing if the tensor cannot be read here.
  std::optional<AcquiredWindow> acquired(std::shared_ptr<Buffer> buffer,
                                         pybind11::object tensor) const;

  // What every call has; it uses the smaller number of threads and cores.
  struct Arguments {
    PyObject *input, *out, *routing, *sizes, *padded_to, *lane, *stream, *threads, *cores,
        *epilogue;
  };
  PyObject* run_rows(Plan::Kind kind, const Arguments& given);
  PyObject* run_combine(const Arguments& given, PyObject* weights, PyObject* index,
                        PyObject* scale);
  // The tensor, once its window is free to be written again; None if the window was outgrown or the
  // tensor has been turned into another one.
  PyObject* acquire_again(const AcquiredWindow& window) const;

 private:
  using Calls = std::vector<std::shared_ptr<const KnownCall>>;  // last used first
  struct Tensors {
    TensorFacts input, weights, index, ids, experts;
    EpilogueFacts epilogue;
  };

  Calls& rows_of(Plan::Kind kind) { return rows_[static_cast<size_t>(kind)]; }
  void keep(Calls& calls, const Form& form, const std::shared_ptr<const Plan>& plan,
            const kernels::TopkReduceArgs& sum);
  static std::shared_ptr<const KnownCall> find(Calls& calls, const Arguments& given,
                                               const Tensors& tensors);
  // False unless it is None or a Routing with tensors that can be read.
  bool read_routing(PyObject* routing, Tensors* tensors) const;
  // The output to write and where it is; null if it does not fit.
  pybind11::object output_for(const KnownCall& call, PyObject* out, MemoryRange* target) const;

  pybind11::object group_;
  const GroupHandle* handle_;
  TensorReader reader_;
  EpilogueReader epilogues_;
  pybind11::type routing_type_;
  pybind11::str ids_name_, experts_name_, weights_name_;
  std::array<Calls, Plan::kKinds> rows_;
  Calls combines_;
};

}  // namespace symmoe::bindings
