#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/nccl/abi.h"

namespace symmoe::fake {

// Memory without a name (memfd) that other processes of the same user map by way of /proc. Nothing
// is left of it when the last process that has it ends, however it ends.
class SharedMemory {
 public:
  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Zeroed. Throws Refusal (kNcclUnhandledCudaError) if there is none.
  static SharedMemory create(size_t bytes, const char* name);
  // What process `pid` has open as `descriptor`. Throws Refusal (kNcclSystemError) if that is not
  // there or smaller.
  static SharedMemory attach(int32_t pid, int descriptor, size_t bytes);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int descriptor() const { return descriptor_; }  // the creator's, for others to attach
  // Nobody can attach any more; the memory stays.
  void close_descriptor();

 private:
  void map(int descriptor, const std::string& what, NcclResult failure);

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  int descriptor_ = -1;
};

}  // namespace symmoe::fake
