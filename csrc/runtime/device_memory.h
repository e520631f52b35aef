#pragma once

#include <cstddef>
#include <memory>

#include "runtime/device.h"

namespace symmoe {

// What DeviceMemory and PinnedMemory share: memory that is given back by a function of the table.
// Giving back is allowed at any time, also while some stream is being captured. The owner makes
// sure that no queued work uses the memory any more.
class OwnedMemory {
 public:
  using Allocate = int (*)(void** memory, size_t bytes);
  using Release = int (*)(void* memory);

  OwnedMemory(const OwnedMemory&) = delete;
  OwnedMemory& operator=(const OwnedMemory&) = delete;

  void* get() const { return memory_; }
  size_t size() const { return bytes_; }

 protected:
  OwnedMemory() = default;
  OwnedMemory(std::shared_ptr<Device> device, size_t bytes, Allocate allocate, Release release,
              const char* what);
  OwnedMemory(OwnedMemory&& other) noexcept;
  OwnedMemory& operator=(OwnedMemory&& other) noexcept;
  ~OwnedMemory();

 private:
  void swap(OwnedMemory& other) noexcept;

  std::shared_ptr<Device> device_;
  Release release_ = nullptr;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

// Memory of the device. Throws OutOfMemory; zero bytes are legal and have no address.
class DeviceMemory : public OwnedMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const std::shared_ptr<Device>& device, size_t bytes);
};

// Memory of the host that kernels can read and write, at the same address.
class PinnedMemory : public OwnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(const std::shared_ptr<Device>& device, size_t bytes);
};

}  // namespace symmoe
