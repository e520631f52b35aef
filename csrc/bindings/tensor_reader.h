#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>

namespace symmoe::bindings {

// Element type as DLPack writes it.
struct ElementType {
  uint8_t code = 0;
  uint8_t bits = 0;
  uint16_t lanes = 0;

  friend bool operator==(const ElementType&, const ElementType&) = default;
};

// What a tensor is. `shape` is the tensor's own memory.
struct TensorFacts {
  void* data = nullptr;
  size_t bytes = 0;
  const int64_t* shape = nullptr;
  int dims = 0;
  ElementType type;
};

// Reads tensors in C, in a tenth of the time that their attributes take in Python. Through the
// table of functions that DLPack defines for this (`__dlpack_c_exchange_api__`), so that one build
// serves every torch; one that has no such table yet is served in Python alone.
class TensorReader {
 public:
  explicit TensorReader(const pybind11::type& tensor_type);

  // Whether the tensor type has the table.
  bool can_read() const { return describe_ != nullptr; }

  // Each: false, and no Python error, unless `object` is what nearly every call gets: exactly of
  // the tensor type and in contiguous CPU memory. Nor may a result be a lazy negative; an input, in
  // addition, must want no gradient.
  bool read(PyObject* object, TensorFacts* facts) const;
  bool read_result(PyObject* object, TensorFacts* facts) const;
  bool read_input(PyObject* object, TensorFacts* facts) const;

  bool wants_gradient(PyObject* tensor) const;

 private:
  struct DlTensor;
  struct DlExchange;
  using Describe = int (*)(void* object, DlTensor* tensor);

  bool is_lazy_negative(PyObject* tensor) const;

  pybind11::type type_;
  pybind11::object is_neg_;
  pybind11::str requires_grad_;
  Describe describe_ = nullptr;
};

}  // namespace symmoe::bindings
