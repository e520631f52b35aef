#include "backends/host/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <system_error>

#include "backends/host/refusal.h"

namespace symmoe::host {
namespace {

constexpr size_t kAlignment = 512;
// Address ranges of released memory that stay untouchable before they can serve again.
constexpr size_t kQuarantine = 256;

struct Mapping {
  std::byte* base;
  size_t mapped_bytes;  // with the page behind
};

struct Allocation {
  MemoryKind kind;
  size_t bytes;
  Mapping mapping;
};

struct Memory {
  std::mutex mutex;
  std::map<void*, Allocation> allocations;
  std::deque<Mapping> quarantine;
  size_t live_bytes = 0;
  size_t limit_bytes = 0;
};

// Never destroyed: streams may still run while the process ends.
Memory& memory() {
  static auto* const all = new Memory;
  return *all;
}

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

Refusal out_of_memory(size_t bytes, const std::string& reason) {
  return {kDeviceOutOfMemory,
          "out of memory: " + std::to_string(bytes) + " bytes wanted, " + reason};
}

// Mapped over, not protected: that gives the pages back.
void quarantine_locked(Memory& all, const Mapping& mapping) {
  if (mmap(mapping.base, mapping.mapped_bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    munmap(mapping.base, mapping.mapped_bytes);
    return;
  }
  all.quarantine.push_back(mapping);
  if (all.quarantine.size() > kQuarantine) {
    munmap(all.quarantine.front().base, all.quarantine.front().mapped_bytes);
    all.quarantine.pop_front();
  }
}

}  // namespace

// Counts the bytes before the memory is there, so that the lock is not held meanwhile.
void take_bytes(size_t bytes) {
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  if (all.limit_bytes != 0 && bytes > all.limit_bytes - std::min(all.limit_bytes, all.live_bytes)) {
    throw out_of_memory(bytes, std::to_string(all.live_bytes) + " of " +
                                   std::to_string(all.limit_bytes) + " in use");
  }
  if (bytes > physical_bytes()) {
    throw out_of_memory(bytes, "the machine has " + std::to_string(physical_bytes()));
  }
  all.live_bytes += bytes;
}

void give_bytes(size_t bytes) {
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  all.live_bytes -= bytes;
}

void* allocate(MemoryKind kind, size_t bytes) {
  if (bytes == 0) return nullptr;
  take_bytes(bytes);
  const size_t usable = round_up(bytes, page_bytes());
  const size_t mapped = usable + page_bytes();
  void* base = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED || mprotect(base, usable, PROT_READ | PROT_WRITE) != 0) {
    const std::string reason = std::system_category().message(errno);
    if (base != MAP_FAILED) munmap(base, mapped);
    give_bytes(bytes);
    throw out_of_memory(bytes, "mmap: " + reason);
  }
  const Mapping mapping{static_cast<std::byte*>(base), mapped};
  std::byte* start = mapping.base + (usable - round_up(bytes, kAlignment));
  std::memset(start, 0xFF, bytes);
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  all.allocations[start] = {kind, bytes, mapping};
  return start;
}

void release(MemoryKind kind, void* address) {
  if (address == nullptr) return;
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  const auto found = all.allocations.find(address);
  if (found == all.allocations.end() || found->second.kind != kind) {
    throw Refusal{kInvalidArgument, kind == MemoryKind::kDevice
                                        ? "release: not the start of live device memory"
                                        : "release_pinned: not the start of live pinned memory"};
  }
  const Mapping mapping = found->second.mapping;
  all.live_bytes -= found->second.bytes;
  all.allocations.erase(found);
  quarantine_locked(all, mapping);
}

void quarantine(void* base, size_t bytes) {
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  quarantine_locked(all, {static_cast<std::byte*>(base), bytes});
}

void limit_memory(size_t bytes) {
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  all.limit_bytes = bytes;
}

size_t live_bytes() {
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  return all.live_bytes;
}

void memory_state(size_t* free_bytes, size_t* total_bytes) {
  Memory& all = memory();
  const std::lock_guard lock(all.mutex);
  *total_bytes = all.limit_bytes != 0 ? all.limit_bytes : physical_bytes();
  *free_bytes = *total_bytes - std::min(*total_bytes, all.live_bytes);
}

size_t physical_bytes() { return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes(); }

}  // namespace symmoe::host
