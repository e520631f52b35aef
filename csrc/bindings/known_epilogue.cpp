#include "bindings/known_epilogue.h"

#include <algorithm>
#include <utility>

#include "bindings/bindings.h"

namespace py = pybind11;

namespace symmoe::bindings {
namespace {

py::str interned(const char* name) {
  return py::reinterpret_steal<py::str>(PyUnicode_InternFromString(name));
}

}  // namespace

EpilogueReader::EpilogueReader(Types types)
    : types_(std::move(types)),
      tensors_(types_.tensor),
      parameters_(types_.parameter),
      scale_(interned("scale")),
      scale_shared_(interned("scale_shared")),
      eps_(interned("eps")),
      quantize_(interned("quantize")),
      residual_(interned("residual")),
      scales_(interned("scales")),
      shared_(interned("shared")),
      norm_weight_(interned("norm_weight")) {}

bool EpilogueReader::read_tensor(PyObject* epilogue, const py::str& name,
                                 TensorFacts* facts) const {
  const py::object tensor = py::handle(epilogue).attr(name);
  if (tensor.is_none()) return true;
  const bool is_parameter =
      Py_IS_TYPE(tensor.ptr(), reinterpret_cast<PyTypeObject*>(types_.parameter.ptr()));
  const TensorReader& reader = is_parameter ? parameters_ : tensors_;
  if (!reader.can_read() || !reader.read_result(tensor.ptr(), facts)) return false;
  return !reader.wants_gradient(tensor.ptr()) || types_.is_grad_enabled().is(py::bool_(false));
}

bool EpilogueReader::read(PyObject* epilogue, EpilogueFacts* facts) const {
  if (epilogue == Py_None) return true;
  if (!Py_IS_TYPE(epilogue, reinterpret_cast<PyTypeObject*>(types_.epilogue.ptr()))) return false;
  const py::handle given = epilogue;
  facts->given = true;
  const py::object scale = given.attr(scale_);
  const py::object eps = given.attr(eps_);
  if ((!scale.is_none() && PyFloat_CheckExact(scale.ptr()) == 0) ||
      PyFloat_CheckExact(eps.ptr()) == 0) {
    return false;
  }
  facts->has_scale = !scale.is_none();
  if (facts->has_scale) facts->scale = fp32_of(PyFloat_AS_DOUBLE(scale.ptr()));
  facts->eps = fp32_of(PyFloat_AS_DOUBLE(eps.ptr()));
  facts->scale_shared = PyObject_IsTrue(py::object(given.attr(scale_shared_)).ptr()) == 1;
  facts->quantize = py::object(given.attr(quantize_)).ptr();
  return read_tensor(epilogue, residual_, &facts->residual) &&
         read_tensor(epilogue, scales_, &facts->scales) &&
         read_tensor(epilogue, shared_, &facts->shared) &&
         read_tensor(epilogue, norm_weight_, &facts->norm_weight);
}

KnownEpilogue::Tensors KnownEpilogue::tensors_of(const EpilogueFacts& facts) {
  return {&facts.residual, &facts.scales, &facts.shared, &facts.norm_weight};
}

std::optional<KnownEpilogue> KnownEpilogue::like(const EpilogueFacts& facts,
                                                 const kernels::Epilogue& steps) {
  KnownEpilogue known;
  known.given_ = true;
  known.has_scale_ = facts.has_scale;
  known.scale_shared_ = facts.scale_shared;
  known.quantize_ = py::reinterpret_borrow<py::object>(facts.quantize);
  known.steps_ = steps;
  auto to = known.tensors_.begin();
  for (const TensorFacts* from : tensors_of(facts)) {
    const auto like = KnownTensor::like(*from);
    if (!like) return std::nullopt;
    *to++ = *like;
  }
  return known;
}

bool KnownEpilogue::equal(const EpilogueFacts& facts) const {
  if (facts.given != given_) return false;
  if (!given_) return true;
  if (facts.has_scale != has_scale_ || facts.scale_shared != scale_shared_) return false;
  if (!quantize_.is(py::handle(facts.quantize)) && !quantize_.equal(py::handle(facts.quantize))) {
    return false;
  }
  const Tensors tensors = tensors_of(facts);
  return std::equal(
      tensors.begin(), tensors.end(), tensors_.begin(),
      [](const TensorFacts* given, const KnownTensor& known) { return known.equal(*given); });
}

kernels::Epilogue KnownEpilogue::steps(const EpilogueFacts& facts) const {
  kernels::Epilogue steps = steps_;
  steps.shared = facts.shared.data;
  steps.residual = facts.residual.data;
  steps.norm_weight = facts.norm_weight.data;
  steps.scales = static_cast<float*>(facts.scales.data);
  steps.scale = facts.scale;
  steps.eps = facts.eps;
  return steps;
}

bool writes_apart(const EpilogueFacts& facts, const Plan& plan, MemoryRange out,
                  const std::array<MemoryRange, 3>& inputs) {
  const auto range = [](const TensorFacts& tensor, size_t used) {
    return MemoryRange{static_cast<const std::byte*>(tensor.data),
                       tensor.data == nullptr ? 0 : used};
  };
  const size_t rows = plan.output_bytes();
  const MemoryRange residual = range(facts.residual, rows);
  const MemoryRange scales =
      range(facts.scales, static_cast<size_t>(plan.own_count()) * sizeof(float));
  const MemoryRange shared = range(facts.shared, rows);
  const MemoryRange weight = range(facts.norm_weight, facts.norm_weight.bytes);
  const auto is_free = [&](MemoryRange written) {
    return is_apart(written, out) && is_apart(written, shared) && is_apart(written, weight) &&
           std::all_of(inputs.begin(), inputs.end(),
                       [&](MemoryRange input) { return is_apart(written, input); });
  };
  return is_apart(residual, scales) && is_apart(out, shared) && is_apart(out, weight) &&
         is_free(residual) && is_free(scales);
}

}  // namespace symmoe::bindings
