#pragma once

#include <memory>
#include <mutex>

#include "runtime/device_memory.h"

namespace symmoe {

// What kernels of one device reported about values that only they could see. Looked at by the next
// call: the one that had the fault is over by then.
class Faults {
 public:
  explicit Faults(const std::shared_ptr<Device>& device);

  // For the kernels.
  kernels::Fault* record() const { return static_cast<kernels::Fault*>(memory_.get()); }

  // Throws InvalidArgument if a kernel reported something since; once. `rank`: -1, none.
  void raise(const char* operation, int rank = -1);

 private:
  PinnedMemory memory_;
  std::mutex mutex_;
};

}  // namespace symmoe
