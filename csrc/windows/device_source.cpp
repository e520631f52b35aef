#include "windows/device_source.h"

#include <string>

#include "base/error.h"
#include "runtime/stream.h"

namespace symmoe {

Window DeviceSource::create(size_t bytes) {
  const RelaxedCapture relaxed(*device_);
  auto memory = std::make_shared<DeviceMemory>(device_, bytes);
  Window window;
  window.base = static_cast<std::byte*>(memory->get());
  window.bytes = bytes;
  window.memory = std::move(memory);
  window.ordinal = ++last_ordinal_;
  return window;
}

const std::byte* DeviceSource::address(int rank, uint32_t ordinal) {
  throw InvalidArgument("scratch memory " + std::to_string(ordinal) + " has no address at rank " +
                        std::to_string(rank));
}

}  // namespace symmoe
