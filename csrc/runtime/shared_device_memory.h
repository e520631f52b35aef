#pragma once

#include <cstddef>
#include <memory>

#include "runtime/device.h"

namespace symmoe {

// Device memory that has a file descriptor, by which the devices of other processes map it: this
// process's own, or a peer's as mapped here. The memory itself lives until the last process has
// given it back and the last descriptor is closed. Giving back is allowed at any time, also while
// some stream is being captured; the owner makes sure that no queued work uses it any more. In a
// forked child the object is an empty shell.
class SharedDeviceMemory {
 public:
  SharedDeviceMemory() = default;
  ~SharedDeviceMemory();
  SharedDeviceMemory(SharedDeviceMemory&& other) noexcept;
  SharedDeviceMemory& operator=(SharedDeviceMemory&& other) noexcept;
  SharedDeviceMemory(const SharedDeviceMemory&) = delete;
  SharedDeviceMemory& operator=(const SharedDeviceMemory&) = delete;

  // New memory; `*descriptor` is the caller's to close. Throws OutOfMemory, DeviceError.
  static SharedDeviceMemory create(const std::shared_ptr<Device>& device, size_t bytes,
                                   int* descriptor);

  // What a peer created, with the same `bytes`. Does not take the descriptor. Throws OutOfMemory,
  // DeviceError.
  static SharedDeviceMemory attach(const std::shared_ptr<Device>& device, int descriptor,
                                   size_t bytes);

  void* get() const { return memory_; }
  size_t bytes() const { return bytes_; }

 private:
  SharedDeviceMemory(std::shared_ptr<Device> device, size_t bytes);

  std::shared_ptr<Device> device_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace symmoe
