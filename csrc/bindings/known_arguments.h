#pragma once

#include <Python.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/tensor_reader.h"

namespace symmoe::bindings {

// Whether `given` is exactly an int (to Python, True and 1.0 equal 1 as well) of this value.
bool is_int(PyObject* given, int64_t value);

// An argument of integers: None, an int, or a list or tuple of what is exactly int.
class KnownIntegers {
 public:
  // Nothing if it is anything else.
  static std::optional<KnownIntegers> like(PyObject* given);

  bool equal(PyObject* given) const;

 private:
  enum class Form : uint8_t { kNone, kOne, kSeveral };

  Form form_ = Form::kNone;
  std::vector<int64_t> values_;
};

// What a tensor argument looks like; None is one of no dimensions and no type.
struct KnownTensor {
  static constexpr int kMostDims = 3;

  int dims = 0;
  std::array<int64_t, kMostDims> shape{};
  ElementType type;

  // Nothing if it has more dimensions than any call takes.
  static std::optional<KnownTensor> like(const TensorFacts& facts);

  bool equal(const TensorFacts& facts) const;
  friend bool operator==(const KnownTensor&, const KnownTensor&) = default;
};

}  // namespace symmoe::bindings
