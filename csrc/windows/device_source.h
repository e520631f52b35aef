#pragma once

#include <memory>
#include <utility>

#include "runtime/device_memory.h"
#include "windows/window.h"

namespace symmoe {

// Device memory that only this rank uses, for a pool of scratch buffers: no peer sees it, and no
// rank has to take part.
class DeviceSource : public WindowSource {
 public:
  explicit DeviceSource(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  Window create(size_t bytes) override;
  void drop(const Window&) override {}  // the memory goes with its last user
  const std::byte* address(int rank, uint32_t ordinal) override;  // throws: there are no peers
  void refresh() override {}
  size_t mapped_bytes() const override { return 0; }

 private:
  std::shared_ptr<Device> device_;
  uint32_t last_ordinal_ = 0;
};

}  // namespace symmoe
