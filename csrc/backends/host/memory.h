#pragma once

#include <cstddef>

namespace symmoe::host {

enum class MemoryKind { kDevice, kPinned };

// Memory of the host, made so that mistakes show: it comes filled with 0xFF (NaN in every element
// type), ends (but for the alignment of 512 bytes) at a page that nobody may touch, and so does all
// of it once it is released. Unlike a GPU's, the release does not wait for work that is queued.
void* allocate(MemoryKind kind, size_t bytes);
void release(MemoryKind kind, void* memory);

// For memory that is not from here: only counted, against the same limit.
void take_bytes(size_t bytes);
void give_bytes(size_t bytes);

// Takes the range `base`..`base + bytes` out of use: its pages go, and for a while whoever touches
// it is struck down.
void quarantine(void* base, size_t bytes);

void limit_memory(size_t bytes);  // 0: no limit
size_t live_bytes();
void memory_state(size_t* free_bytes, size_t* total_bytes);
size_t physical_bytes();

}  // namespace symmoe::host
