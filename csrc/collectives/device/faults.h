#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "runtime/device_memory.h"

namespace symmoe {

// What kernels of one device reported: values that only they could see, and peers that did not come
// or made another call. Looked at by the next call: the one that had the fault is over by then.
class Faults {
 public:
  explicit Faults(const std::shared_ptr<Device>& device);

  // For the kernels.
  kernels::Fault* record() const { return static_cast<kernels::Fault*>(memory_.get()); }

  // Throws what a kernel reported since, once: InvalidArgument for a wrong value, after which the
  // ranks still go together; else, and then for good, Mismatch, DeadlineExceeded or PeerLost.
  // `rank`: -1, none. `but_values`: wrong values are left for a later call.
  void raise(const char* operation, int rank = -1, bool but_values = false);

  // Why the group cannot go on, as far as that is known without a call's taking part: empty, or
  // the words for a peer that did not come. Leaves the fault for raise().
  std::string lost_peer(int rank) const;

 private:
  bool pending() const;

  PinnedMemory memory_;
  std::mutex mutex_;
};

}  // namespace symmoe
