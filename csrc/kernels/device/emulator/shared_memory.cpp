#include "kernels/device/emulator/shared_memory.h"

#include <cstring>
#include <new>

#include "kernels/device/emulator/sanitizers.h"
#include "kernels/device/emulator/violation.h"

namespace symmoe::emulator {
namespace {

constexpr size_t kBytes = size_t{48} << 10;  // what every device grants to __shared__ variables
constexpr size_t kGap = 64;                  // alignment, and at least so much between variables
constexpr std::align_val_t kAlignment{kGap};

void forbid([[maybe_unused]] char* memory, [[maybe_unused]] size_t bytes) {
#if defined(SYMMOE_ASAN)
  ASAN_POISON_MEMORY_REGION(memory, bytes);
#endif
}

void allow([[maybe_unused]] char* memory, [[maybe_unused]] size_t bytes) {
#if defined(SYMMOE_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
#endif
}

}  // namespace

void SharedMemory::Free::operator()(char* memory) const {
  allow(memory, kBytes);
  ::operator delete[](memory, kAlignment);
}

SharedMemory::SharedMemory() : memory_(new (kAlignment) char[kBytes]) {
  std::memset(memory_.get(), 0xff, kBytes);
  forbid(memory_.get(), kBytes);
}

SharedMemory::~SharedMemory() = default;

SYMMOE_BOOKKEEPING void SharedMemory::clear() {
  allow(memory_.get(), used_);
  std::memset(memory_.get(), 0xff, used_);
  forbid(memory_.get(), used_);
  count_ = 0;
  used_ = 0;
}

SYMMOE_BOOKKEEPING void* SharedMemory::variable(const void* site, size_t bytes) {
  for (int i = 0; i < count_; ++i) {
    if (variables_[i].site == site) return variables_[i].memory;
  }
  if (bytes > kBytes - used_ || count_ == kMaxVariables) {
    violation("__shared__ variables of over %zu bytes, or more than %d of them", kBytes,
              kMaxVariables);
  }
  char* const memory = memory_.get() + used_;
  allow(memory, bytes);
  variables_[count_++] = {site, memory};
  used_ += (bytes + 2 * kGap - 1) / kGap * kGap;
  if (used_ > kBytes) used_ = kBytes;
  return memory;
}

}  // namespace symmoe::emulator
