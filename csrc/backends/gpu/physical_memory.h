#pragma once

#include <cstddef>

#include "backends/gpu/gpu_api.h"

#ifndef SYMMOE_HIP
#include <cuda.h>
#endif

// Physical memory and address ranges, each a call of CUDA's driver (cuda_physical_memory.cpp) or of
// ROCm's runtime (hip_physical_memory.cpp).
namespace symmoe::gpu::physical {

#ifdef SYMMOE_HIP
using Handle = hipMemGenericAllocationHandle_t;
#else
using Handle = CUmemGenericAllocationHandle;
#endif

// Why `device` has no memory with file descriptors; null if it has. The text is static.
const char* refusal(int device);

// Sizes and addresses are multiples of this.
Error granularity(int device, size_t* bytes);

// Memory of `device` that can be exported.
Error create(Handle* handle, size_t bytes, int device);
Error export_descriptor(Handle handle, int* descriptor);
Error import_descriptor(Handle* handle, int descriptor);
// Whatever is mapped keeps the memory.
Error release(Handle handle);

Error reserve(void** address, size_t bytes, size_t alignment);
Error give_up(void* address, size_t bytes);
Error map(void* address, size_t bytes, Handle handle);
Error unmap(void* address, size_t bytes);
// Lets `device` read and write what is mapped there.
Error allow(void* address, size_t bytes, int device);

}  // namespace symmoe::gpu::physical
