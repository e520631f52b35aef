#pragma once

#include <cstddef>
#include <cstdint>

namespace symmoe {

// Element types of expert output and windows. The numbers are part of the Python bindings.
enum class DType : uint8_t { kBFloat16 = 0, kFloat16 = 1, kFloat32 = 2 };
constexpr int kDTypes = 3;

constexpr size_t size_of(DType type) { return type == DType::kFloat32 ? 4 : 2; }

constexpr const char* name_of(DType type) {
  switch (type) {
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kFloat32:
      return "float32";
  }
  return "unknown";
}

}  // namespace symmoe
