#include "collectives/device/faults.h"

#include <atomic>
#include <cstring>
#include <string>

#include "base/error.h"

namespace symmoe {

Faults::Faults(const std::shared_ptr<Device>& device) : memory_(device, sizeof(kernels::Fault)) {
  std::memset(memory_.get(), 0, sizeof(kernels::Fault));
}

void Faults::raise(const char* operation, int rank) {
  kernels::Fault& fault = *record();
  const std::atomic_ref<uint32_t> kind(fault.kind);
  if (kind.load(std::memory_order_acquire) == kernels::Fault::kNone) return;
  const std::lock_guard lock(mutex_);
  if (kind.load(std::memory_order_acquire) == kernels::Fault::kNone) return;
  const std::string what = "index[" + std::to_string(fault.subject) + ", " +
                           std::to_string(fault.detail) + "] is " + std::to_string(fault.value);
  kind.store(kernels::Fault::kNone, std::memory_order_release);
  const std::string where = rank < 0 ? "" : ", rank " + std::to_string(rank);
  throw InvalidArgument(operation + where +
                        ": an earlier topk_reduce or combine met a row that does not exist: " +
                        what + "; it was left out of the sum");
}

}  // namespace symmoe
