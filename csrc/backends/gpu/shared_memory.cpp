#include "backends/gpu/shared_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "backends/gpu/physical_memory.h"
#include "backends/gpu/status.h"

namespace symmoe::gpu {
namespace {

constexpr Error kSuccess = SYMMOE_GPU(Success);

// The current device, set up: the calls below want a context.
Error current(int* device) {
  const Error error = SYMMOE_GPU(GetDevice)(device);
  return error == kSuccess ? SYMMOE_GPU(Free)(nullptr) : error;
}

Error round_up(int device, size_t* bytes, size_t* granularity) {
  const Error error = physical::granularity(device, granularity);
  if (error == kSuccess) *bytes = (*bytes + *granularity - 1) / *granularity * *granularity;
  return error;
}

// Gives `handle` an address for `device`.
Error map(physical::Handle handle, size_t bytes, size_t granularity, int device, void** memory) {
  void* address = nullptr;
  Error error = physical::reserve(&address, bytes, granularity);
  if (error != kSuccess) return error;
  error = physical::map(address, bytes, handle);
  if (error == kSuccess) {
    error = physical::allow(address, bytes, device);
    if (error == kSuccess) {
      *memory = address;
      return kSuccess;
    }
    static_cast<void>(physical::unmap(address, bytes));
  }
  static_cast<void>(physical::give_up(address, bytes));
  return error;
}

// The device of this host with that bus id, or -1 where this process does not see it.
int device_at(const char* bus_id) {
  int device = -1;
  const Error error = SYMMOE_GPU(DeviceGetByPCIBusId)(&device, bus_id);
  static_cast<void>(SYMMOE_GPU(GetLastError)());
  return error == kSuccess ? device : -1;
}

}  // namespace

int shared_refusal(const char* peer, char* reason, size_t capacity) {
  *reason = '\0';
  int device = 0;
  if (const Error error = current(&device); error != kSuccess) return status_of(error);
  if (const char* const lack = physical::refusal(device)) {
    std::snprintf(reason, capacity, "%s", lack);
    return kDeviceOk;
  }
  if (peer == nullptr) return kDeviceOk;
  // One that CUDA_VISIBLE_DEVICES hides may be reached all the same; then the mapping tells.
  const int other = device_at(peer);
  if (other < 0 || other == device) return kDeviceOk;
  int reached = 0;
  const Error error = SYMMOE_GPU(DeviceCanAccessPeer)(&reached, device, other);
  if (error == kSuccess && reached == 0) {
    std::snprintf(reason, capacity, "the device has no access to the memory of the one at %s",
                  peer);
  }
  return status_of(error);
}

int allocate_shared(void** memory, size_t bytes, int* descriptor) {
  *memory = nullptr;
  *descriptor = -1;
  int device = 0;
  size_t granularity = 0;
  physical::Handle handle{};
  Error error = current(&device);
  if (error == kSuccess) error = round_up(device, &bytes, &granularity);
  if (error == kSuccess) error = physical::create(&handle, bytes, device);
  if (error != kSuccess) return status_of(error);

  int exported = -1;
  error = physical::export_descriptor(handle, &exported);
  if (error == kSuccess) error = map(handle, bytes, granularity, device, memory);
  // The mapping and the descriptor keep the memory.
  static_cast<void>(physical::release(handle));
  if (error != kSuccess) {
    if (exported >= 0) close(exported);
    return status_of(error);
  }
  fcntl(exported, F_SETFD, FD_CLOEXEC);
  *descriptor = exported;
  return kDeviceOk;
}

int map_shared(void** memory, int descriptor, size_t bytes) {
  *memory = nullptr;
  int device = 0;
  size_t granularity = 0;
  physical::Handle handle{};
  Error error = current(&device);
  if (error == kSuccess) error = round_up(device, &bytes, &granularity);
  if (error == kSuccess) error = physical::import_descriptor(&handle, descriptor);
  if (error != kSuccess) return status_of(error);
  error = map(handle, bytes, granularity, device, memory);
  static_cast<void>(physical::release(handle));
  return status_of(error);
}

int release_shared(void* memory, size_t bytes) {
  int device = 0;
  size_t granularity = 0;
  Error error = current(&device);
  if (error == kSuccess) error = round_up(device, &bytes, &granularity);
  if (error == kSuccess) error = physical::unmap(memory, bytes);
  if (error == kSuccess) error = physical::give_up(memory, bytes);
  return status_of(error);
}

}  // namespace symmoe::gpu
