#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "fake_nccl/shared_memory.h"

namespace symmoe::fake {

// One ncclMemAlloc of this process.
struct Allocation {
  SharedMemory memory;
  std::atomic<bool> registered = false;
  std::atomic<bool> freed = false;   // its memory is unmapped; a graph may still name it
  std::atomic<int> queued_work = 0;  // work that reads or writes it and has not run yet

  std::byte* base() const { return memory.data(); }
  size_t bytes() const { return memory.bytes(); }
};

// As ncclMemAlloc and ncclMemFree. Fresh memory is filled with 0xFF, NaN in every float type, so
// that reading what nobody wrote shows; freed memory is unmapped, so that using it crashes.
std::byte* allocate(size_t bytes);
void release(void* memory);

// The allocation that contains the address; null if none does.
std::shared_ptr<Allocation> find_allocation(const void* address);

void count_allocations(uint64_t* allocations, uint64_t* bytes);

}  // namespace symmoe::fake
