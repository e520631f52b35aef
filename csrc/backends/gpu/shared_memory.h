#pragma once

#include <cstddef>

namespace symmoe::gpu {

// The entries of the device table for memory shared between processes (runtime/device_table.h),
// over the virtual memory management of the driver. What a failure leaves behind on the way is
// given back.
int shared_refusal(const char* peer, char* reason, size_t capacity);
int allocate_shared(void** memory, size_t bytes, int* descriptor);
int map_shared(void** memory, int descriptor, size_t bytes);
int release_shared(void* memory, size_t bytes);

}  // namespace symmoe::gpu
