#include "runtime/shared_device_memory.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "runtime/stream.h"

namespace symmoe {

SharedDeviceMemory::SharedDeviceMemory(std::shared_ptr<Device> device, size_t bytes)
    : device_(std::move(device)), bytes_(bytes) {}

SharedDeviceMemory::SharedDeviceMemory(SharedDeviceMemory&& other) noexcept
    : device_(std::move(other.device_)),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedDeviceMemory& SharedDeviceMemory::operator=(SharedDeviceMemory&& other) noexcept {
  if (this != &other) {
    const SharedDeviceMemory old(std::move(*this));
    device_ = std::move(other.device_);
    memory_ = std::exchange(other.memory_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

SharedDeviceMemory::~SharedDeviceMemory() {
  if (memory_ == nullptr || !device_->usable()) return;
  try {
    const CurrentDevice current(*device_);
    const RelaxedCapture relaxed(*device_);
    device_->table().release_shared(memory_, bytes_);
  } catch (const Error&) {
    // The runtime is gone, as at the end of the process, and the memory with it.
  }
}

SharedDeviceMemory SharedDeviceMemory::create(const std::shared_ptr<Device>& device, size_t bytes,
                                              int* descriptor) {
  SharedDeviceMemory made(device, bytes);
  const CurrentDevice current(*device);
  const RelaxedCapture relaxed(*device);
  device->require(device->table().allocate_shared(&made.memory_, bytes, descriptor),
                  ("shared device memory of " + std::to_string(bytes) + " bytes").c_str());
  return made;
}

SharedDeviceMemory SharedDeviceMemory::attach(const std::shared_ptr<Device>& device, int descriptor,
                                              size_t bytes) {
  SharedDeviceMemory made(device, bytes);
  const CurrentDevice current(*device);
  const RelaxedCapture relaxed(*device);
  device->require(device->table().map_shared(&made.memory_, descriptor, bytes),
                  ("mapping of a peer's " + std::to_string(bytes) + " bytes").c_str());
  return made;
}

}  // namespace symmoe
