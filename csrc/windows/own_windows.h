#pragma once

#include <memory>

#include "windows/shared_memory.h"

namespace symmoe::own_windows {

// Shares `memory`, and lists its address range until the last reference is gone.
std::shared_ptr<SharedMemory> registered(SharedMemory memory);

// Whether `address` lies in a window that this process writes and peers read. Kernels write such
// memory in another way.
bool contain(const void* address);

}  // namespace symmoe::own_windows
