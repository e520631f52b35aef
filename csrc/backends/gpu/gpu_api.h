#pragma once

// The runtime API of CUDA or, with SYMMOE_HIP, of ROCm: SYMMOE_GPU(StreamQuery) is cudaStreamQuery
// or hipStreamQuery. The few things that differ by more than that have one name here.

#ifdef SYMMOE_HIP
#include <hip/hip_runtime_api.h>
#define SYMMOE_GPU(name) hip##name
#else
#include <cuda_runtime_api.h>
#define SYMMOE_GPU(name) cuda##name
#endif

#include <cstddef>
#include <cstdint>

namespace symmoe::gpu {

using Error = SYMMOE_GPU(Error_t);
using Stream = SYMMOE_GPU(Stream_t);
using Event = SYMMOE_GPU(Event_t);

#ifdef SYMMOE_HIP
using Properties = hipDeviceProp_t;
constexpr const char* kKind = "hip";
constexpr const char* kDriver = "ROCm driver";
constexpr Error kOutOfMemory = hipErrorOutOfMemory;
constexpr auto kMultiprocessorCount = hipDeviceAttributeMultiprocessorCount;

// Coherent: the host reads it while kernels run.
inline Error allocate_pinned(void** memory, size_t bytes) {
  return hipHostMalloc(memory, bytes,
                       hipHostMallocMapped | hipHostMallocPortable | hipHostMallocCoherent);
}
inline Error release_pinned(void* memory) { return hipHostFree(memory); }
#else
using Properties = cudaDeviceProp;
constexpr const char* kKind = "cuda";
constexpr const char* kDriver = "CUDA driver";
constexpr Error kOutOfMemory = cudaErrorMemoryAllocation;
constexpr auto kMultiprocessorCount = cudaDevAttrMultiProcessorCount;

inline Error allocate_pinned(void** memory, size_t bytes) {
  return cudaHostAlloc(memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
}
inline Error release_pinned(void* memory) { return cudaFreeHost(memory); }
#endif

// The number of parameters after the id has changed between versions; all have defaults.
inline Error capture_info(Stream stream, SYMMOE_GPU(StreamCaptureStatus) * status, uint64_t* id) {
  unsigned long long number = 0;
  const Error error = SYMMOE_GPU(StreamGetCaptureInfo)(stream, status, &number);
  *id = number;
  return error;
}

}  // namespace symmoe::gpu
