#include "runtime/device_memory.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "runtime/stream.h"

namespace symmoe {

OwnedMemory::OwnedMemory(std::shared_ptr<Device> device, size_t bytes, Allocate allocate,
                         Release release, const char* what)
    : device_(std::move(device)), release_(release), bytes_(bytes) {
  if (bytes == 0) return;
  const CurrentDevice current(*device_);
  device_->require(allocate(&memory_, bytes),
                   (std::string(what) + " of " + std::to_string(bytes) + " bytes").c_str());
}

OwnedMemory::OwnedMemory(OwnedMemory&& other) noexcept { swap(other); }

OwnedMemory& OwnedMemory::operator=(OwnedMemory&& other) noexcept {
  if (this != &other) {
    OwnedMemory old(std::move(*this));
    swap(other);
  }
  return *this;
}

OwnedMemory::~OwnedMemory() {
  if (memory_ == nullptr || !device_->usable()) return;
  try {
    const CurrentDevice current(*device_);
    const RelaxedCapture relaxed(*device_);
    release_(memory_);
  } catch (const Error&) {
    // The runtime is gone, as at the end of the process, and the memory with it.
  }
}

void OwnedMemory::swap(OwnedMemory& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(release_, other.release_);
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
}

DeviceMemory::DeviceMemory(const std::shared_ptr<Device>& device, size_t bytes)
    : OwnedMemory(device, bytes, device->table().allocate, device->table().release,
                  "device memory") {}

PinnedMemory::PinnedMemory(const std::shared_ptr<Device>& device, size_t bytes)
    : OwnedMemory(device, bytes, device->table().allocate_pinned, device->table().release_pinned,
                  "pinned memory") {}

}  // namespace symmoe
