#include "bindings/tensor_reader.h"

namespace py = pybind11;

namespace symmoe::bindings {

namespace {

constexpr const char* kTableAttribute = "__dlpack_c_exchange_api__";
constexpr const char* kTableCapsule = "dlpack_exchange_api";
constexpr uint32_t kMajorVersion = 1;
constexpr int32_t kCpu = 1;

// Whether a question to Python was answered with anything but False; takes the reference.
bool is_other_than_false(PyObject* answer) {
  if (answer == nullptr) PyErr_Clear();
  Py_XDECREF(answer);
  return answer != Py_False;
}

}  // namespace

// The parts of DLPack's binary interface, version 1, that are used here.
struct TensorReader::DlTensor {
  void* data;
  int32_t device_type;
  int32_t device;
  int32_t dims;
  ElementType type;
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};

struct TensorReader::DlExchange {
  uint32_t major;
  uint32_t minor;
  const DlExchange* older;
  void* allocate;
  void* export_tensor;
  void* import_tensor;
  Describe describe;  // may be null; 0: done
  void* current_stream;
};

TensorReader::TensorReader(const py::type& tensor_type)
    : type_(tensor_type),
      is_neg_(tensor_type.attr("is_neg")),
      requires_grad_(py::reinterpret_steal<py::str>(PyUnicode_InternFromString("requires_grad"))) {
  const py::object capsule = py::getattr(tensor_type, kTableAttribute, py::none());
  if (PyCapsule_IsValid(capsule.ptr(), kTableCapsule) == 0) return;
  const auto* table =
      static_cast<const DlExchange*>(PyCapsule_GetPointer(capsule.ptr(), kTableCapsule));
  while (table != nullptr && table->major != kMajorVersion) table = table->older;
  if (table != nullptr) describe_ = table->describe;
}

bool TensorReader::is_lazy_negative(PyObject* tensor) const {
  return is_other_than_false(PyObject_CallOneArg(is_neg_.ptr(), tensor));
}

bool TensorReader::wants_gradient(PyObject* tensor) const {
  return is_other_than_false(PyObject_GetAttr(tensor, requires_grad_.ptr()));
}

bool TensorReader::read_result(PyObject* object, TensorFacts* facts) const {
  return read(object, facts) && !is_lazy_negative(object);
}

bool TensorReader::read_input(PyObject* object, TensorFacts* facts) const {
  return read_result(object, facts) && !wants_gradient(object);
}

bool TensorReader::read(PyObject* object, TensorFacts* facts) const {
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != type_.ptr()) return false;
  DlTensor tensor{};
  if (describe_(object, &tensor) != 0) {
    PyErr_Clear();
    return false;
  }
  if (tensor.device_type != kCpu) return false;
  int64_t elements = 1;
  bool contiguous = true;
  for (int dim = tensor.dims - 1; dim >= 0; --dim) {
    if (tensor.shape[dim] != 1 && tensor.strides[dim] != elements) contiguous = false;
    elements *= tensor.shape[dim];
  }
  if (elements != 0 && (!contiguous || tensor.data == nullptr)) return false;
  facts->data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  facts->bytes = static_cast<size_t>(elements) * tensor.type.bits * tensor.type.lanes / 8;
  facts->shape = tensor.shape;
  facts->dims = tensor.dims;
  facts->type = tensor.type;
  return true;
}

}  // namespace symmoe::bindings
