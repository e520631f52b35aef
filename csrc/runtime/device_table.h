#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/launch.h"

// Everything that host code may ask of a device: one table of functions, which a back end (a shared
// object for CUDA, HIP or the host; csrc/backends) hands out. Neither this file nor its users know
// a vendor's header, so one build of the core serves all of them, and none.
namespace symmoe {

constexpr uint32_t kDeviceAbi = 4;

using StreamHandle = void*;  // cudaStream_t, hipStream_t; null: the default stream
using EventHandle = void*;

// What the functions below return. Any other value is the vendor's own code plus kVendorStatus.
enum DeviceStatus : int {
  kDeviceOk = 0,
  kDeviceNotReady = 1,  // a query: the work is not done yet
  kDeviceOutOfMemory = 2,
  kDeviceInvalidCapture = 3,  // not allowed while (or unless) a stream is being captured
  kVendorStatus = 1000,
};

struct DeviceProperties {
  char name[128];
  int multiprocessors;
  int major;  // compute capability; 0 where there is none
  int minor;
  size_t total_bytes;
  char bus_id[32];  // where it sits in this host: two processes see it by the same text
};

struct CaptureState {
  bool active;  // the stream records a graph
  uint64_t id;  // of this capture; unique in the process
};

// Which of the calls that disturb a capture in another stream are allowed in the calling thread.
enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };

struct DeviceTable {
  uint32_t abi;      // kDeviceAbi
  const char* kind;  // "cuda", "hip" or "host"

  // Of the calling thread's last failure.
  const char* (*error_text)(int status);

  int (*device_count)(int* count);
  int (*set_device)(int device);  // of the calling thread
  int (*current_device)(int* device);
  int (*properties)(int device, DeviceProperties* properties);
  int (*memory)(size_t* free_bytes, size_t* total_bytes);

  int (*allocate)(void** memory, size_t bytes);
  int (*release)(void* memory);
  // Memory of the host that kernels can read and write.
  int (*allocate_pinned)(void** memory, size_t bytes);
  int (*release_pinned)(void* memory);

  // Memory of the device with a file descriptor, by which other processes' devices map it. Where
  // the current device cannot do that, or (unless `peer` is null) cannot reach the device of this
  // host whose bus_id that is, `reason` becomes the text why, else an empty one.
  int (*shared_refusal)(const char* peer, char* reason, size_t capacity);
  // Fresh memory, not cleared. The descriptor is the caller's to close, which leaves the memory.
  int (*allocate_shared)(void** memory, size_t bytes, int* descriptor);
  // What a process allocated with the same `bytes`, for reading and writing. Whoever maps it keeps
  // it alive. The descriptor stays the caller's.
  int (*map_shared)(void** memory, int descriptor, size_t bytes);
  // Gives back what either of the two gave, with the same `bytes`.
  int (*release_shared)(void* memory, size_t bytes);

  int (*copy)(void* destination, const void* source, size_t bytes, StreamHandle stream);
  int (*fill)(void* memory, int byte, size_t bytes, StreamHandle stream);

  int (*stream_create)(StreamHandle* stream);
  int (*stream_destroy)(StreamHandle stream);
  int (*stream_synchronize)(StreamHandle stream);
  int (*stream_query)(StreamHandle stream);
  int (*stream_wait)(StreamHandle stream, EventHandle event);
  int (*capture_state)(StreamHandle stream, CaptureState* state);
  // Sets the calling thread's mode to *mode and puts the old one there.
  int (*exchange_capture_mode)(CaptureMode* mode);

  int (*event_create)(EventHandle* event);  // without timing
  int (*event_destroy)(EventHandle event);
  int (*event_record)(EventHandle event, StreamHandle stream);
  int (*event_query)(EventHandle event);

  int (*topk_reduce)(const kernels::TopkReduceLaunch* launch, StreamHandle stream);
  int (*rank_reduce)(const kernels::RankReduceLaunch* launch, StreamHandle stream);
  int (*copy_to_window)(const kernels::CopyLaunch* launch, StreamHandle stream);
  int (*route_mask)(const kernels::RouteMaskLaunch* launch, StreamHandle stream);
  int (*pull_reduce)(const kernels::PullLaunch* launch, StreamHandle stream);
  int (*combine)(const kernels::CombineLaunch* launch, StreamHandle stream);
  int (*apply_epilogue)(const kernels::EpilogueLaunch* launch, StreamHandle stream);
  int (*pull_epilogue)(const kernels::PullEpilogueLaunch* launch, StreamHandle stream);
};

// The one symbol that a back end exports.
constexpr const char* kDeviceTableSymbol = "symmoe_device_table";
using DeviceTableFunction = const DeviceTable* (*)();

}  // namespace symmoe
