#include "bindings/known_arguments.h"

#include <algorithm>

namespace symmoe::bindings {

namespace {

// Nothing if it is not exactly an int, or too large.
std::optional<int64_t> int_of(PyObject* given) {
  if (PyLong_CheckExact(given) == 0) return std::nullopt;
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(given, &overflow);
  return overflow == 0 ? std::optional(number) : std::nullopt;
}

bool is_sequence(PyObject* given) {
  return PyList_CheckExact(given) != 0 || PyTuple_CheckExact(given) != 0;
}

}  // namespace

bool is_int(PyObject* given, int64_t value) { return int_of(given) == value; }

std::optional<KnownIntegers> KnownIntegers::like(PyObject* given) {
  KnownIntegers known;
  if (given == Py_None) return known;
  PyObject* const* items = &given;
  Py_ssize_t count = 1;
  known.form_ = Form::kOne;
  if (is_sequence(given)) {
    items = PySequence_Fast_ITEMS(given);
    count = PySequence_Fast_GET_SIZE(given);
    known.form_ = Form::kSeveral;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    const auto number = int_of(items[i]);
    if (!number) return std::nullopt;
    known.values_.push_back(*number);
  }
  return known;
}

bool KnownIntegers::equal(PyObject* given) const {
  switch (form_) {
    case Form::kNone:
      return given == Py_None;
    case Form::kOne:
      return is_int(given, values_[0]);
    case Form::kSeveral:
      break;
  }
  if (!is_sequence(given)) return false;
  if (PySequence_Fast_GET_SIZE(given) != static_cast<Py_ssize_t>(values_.size())) return false;
  return std::equal(values_.begin(), values_.end(), PySequence_Fast_ITEMS(given),
                    [](int64_t value, PyObject* item) { return is_int(item, value); });
}

std::optional<KnownTensor> KnownTensor::like(const TensorFacts& facts) {
  if (facts.dims > kMostDims) return std::nullopt;
  KnownTensor known{.dims = facts.dims, .shape = {}, .type = facts.type};
  std::copy_n(facts.shape, facts.dims, known.shape.begin());
  return known;
}

bool KnownTensor::equal(const TensorFacts& facts) const {
  return facts.dims == dims && facts.type == type &&
         std::equal(facts.shape, facts.shape + dims, shape.begin());
}

}  // namespace symmoe::bindings
