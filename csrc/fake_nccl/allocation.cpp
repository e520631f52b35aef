#include "fake_nccl/allocation.h"

#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "backends/host/host_api.h"
#include "fake_nccl/log.h"
#include "fake_nccl/refusal.h"

namespace symmoe::fake {
namespace {

constexpr size_t kPageBytes = 4096;

struct Allocations {
  std::mutex mutex;
  std::map<const std::byte*, std::shared_ptr<Allocation>> by_base;
};

// Never destroyed: streams may still run when the process ends.
Allocations& allocations() {
  static auto* const all = new Allocations;
  return *all;
}

std::shared_ptr<Allocation> find_locked(const Allocations& all, const void* address) {
  const auto* const byte = static_cast<const std::byte*>(address);
  auto found = all.by_base.upper_bound(byte);
  if (found == all.by_base.begin()) return nullptr;
  --found;
  return byte < found->first + found->second->bytes() ? found->second : nullptr;
}

// The device has no memory for it, or must not be asked now.
void account(int64_t bytes) {
  const int status = symmoe_host_account(bytes);
  if (status == kDeviceOk) return;
  throw Refusal{kNcclUnhandledCudaError,
                status == kDeviceInvalidCapture
                    ? "operation not permitted when stream is capturing"
                    : "out of memory: " + std::to_string(bytes) + " bytes"};
}

}  // namespace

std::byte* allocate(size_t bytes) {
  if (bytes == 0) throw Refusal{kNcclInvalidArgument, "0 bytes"};
  const size_t whole = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  account(static_cast<int64_t>(whole));
  const auto made = std::make_shared<Allocation>();
  try {
    made->memory = SharedMemory::create(whole, "symmoe fake nccl memory");
  } catch (const Refusal&) {
    symmoe_host_account(-static_cast<int64_t>(whole));
    throw;
  }
  std::memset(made->base(), 0xff, whole);
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  all.by_base[made->base()] = made;
  return made->base();
}

void release(void* memory) {
  if (memory == nullptr) return;
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  const std::shared_ptr<Allocation> found = find_locked(all, memory);
  if (found == nullptr || found->base() != memory) {
    throw Refusal{kNcclInvalidArgument, "the memory is not from ncclMemAlloc, or was freed before"};
  }
  if (found->registered) {
    // Real NCCL gives it back all the same, and takes what comes to lie there for the window.
    const std::string text = "the memory is still registered as a window";
    log_misuse(text);
    throw Refusal{kNcclInvalidUsage, text};
  }
  if (const int queued = found->queued_work; queued > 0) {
    throw Refusal{kNcclInvalidUsage,
                  "queued work still uses the memory (" + std::to_string(queued) + " operations)"};
  }
  if (symmoe_host_account(-static_cast<int64_t>(found->bytes())) != kDeviceOk) {
    throw Refusal{kNcclUnhandledCudaError, "operation not permitted when stream is capturing"};
  }
  all.by_base.erase(found->base());
  found->freed = true;
  found->memory = SharedMemory();
}

std::shared_ptr<Allocation> find_allocation(const void* address) {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  return find_locked(all, address);
}

void count_allocations(uint64_t* count, uint64_t* bytes) {
  Allocations& all = allocations();
  const std::lock_guard lock(all.mutex);
  *count = all.by_base.size();
  *bytes = 0;
  for (const auto& [base, allocation] : all.by_base) *bytes += allocation->bytes();
}

}  // namespace symmoe::fake
