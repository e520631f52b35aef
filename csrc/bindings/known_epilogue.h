#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <optional>

#include "bindings/known_arguments.h"
#include "bindings/tensor_reader.h"
#include "collectives/combine.h"
#include "collectives/plan.h"
#include "kernels/cpu/epilogue.h"

namespace symmoe::bindings {

// An epilogue as Python gave it to a call. The objects are the epilogue's, which cannot be changed.
struct EpilogueFacts {
  bool given = false;
  bool has_scale = false;
  bool scale_shared = false;
  PyObject* quantize = nullptr;
  float scale = 1.0f;
  float eps = 0.0f;
  TensorFacts residual, scales, shared, norm_weight;
};

// Reads what is exactly a symmoe.Epilogue.
class EpilogueReader {
 public:
  // As Python has them; a norm's weight may be a torch.nn.Parameter.
  struct Types {
    pybind11::type tensor, parameter, epilogue;
    pybind11::object is_grad_enabled;
  };
  explicit EpilogueReader(Types types);

  // False unless it is None, or an epilogue with tensors that can be read and that nobody wants a
  // gradient for.
  bool read(PyObject* epilogue, EpilogueFacts* facts) const;

 private:
  bool read_tensor(PyObject* epilogue, const pybind11::str& name, TensorFacts* facts) const;

  Types types_;
  TensorReader tensors_, parameters_;
  pybind11::str scale_, scale_shared_, eps_, quantize_;
  pybind11::str residual_, scales_, shared_, norm_weight_;
};

// The epilogue of a call that was found right.
class KnownEpilogue {
 public:
  KnownEpilogue() = default;  // none
  // Nothing if it has tensors of more dimensions than any call takes.
  static std::optional<KnownEpilogue> like(const EpilogueFacts& facts,
                                           const kernels::Epilogue& steps);

  bool equal(const EpilogueFacts& facts) const;
  // Of one that is equal: what the kernels do.
  kernels::Epilogue steps(const EpilogueFacts& facts) const;
  friend bool operator==(const KnownEpilogue& a, const KnownEpilogue& b) {
    return a.given_ == b.given_ && a.tensors_ == b.tensors_ && a.has_scale_ == b.has_scale_ &&
           a.scale_shared_ == b.scale_shared_ && a.steps_.quantized == b.steps_.quantized;
  }

 private:
  using Tensors = std::array<const TensorFacts*, 4>;
  static Tensors tensors_of(const EpilogueFacts& facts);

  bool given_ = false;
  bool has_scale_ = false;
  bool scale_shared_ = false;
  pybind11::object quantize_;
  std::array<KnownTensor, 4> tensors_{};
  kernels::Epilogue steps_;
};

// Whether all that a call with this epilogue writes is apart from everything else of it. `inputs`:
// what it reads besides; whether `out` may be there is not looked at.
bool writes_apart(const EpilogueFacts& facts, const Plan& plan, MemoryRange out,
                  const std::array<MemoryRange, 3>& inputs);

}  // namespace symmoe::bindings
