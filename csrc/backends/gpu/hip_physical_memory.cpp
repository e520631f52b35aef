// ROCm's runtime has the functions itself.

#include "backends/gpu/physical_memory.h"

namespace symmoe::gpu::physical {
namespace {

// Before 7.2 some versions take the address of a descriptor where others take its value, and older
// ones export none. hipRuntimeGetVersion encodes 7.2 as 70200000 and more.
constexpr int kVersion = 7'02'00000;

hipMemLocation location_of(int device) {
  hipMemLocation location{};
  location.type = hipMemLocationTypeDevice;
  location.id = device;
  return location;
}

hipMemAllocationProp properties_of(int device) {
  hipMemAllocationProp properties{};
  properties.type = hipMemAllocationTypePinned;
  properties.requestedHandleType = hipMemHandleTypePosixFileDescriptor;
  properties.location = location_of(device);
  return properties;
}

}  // namespace

const char* refusal(int /*device*/) {
  int version = 0;
  if (hipRuntimeGetVersion(&version) != hipSuccess || version < kVersion) {
    return "ROCm 7.2 is needed for memory with file descriptors";
  }
  return nullptr;
}

Error granularity(int device, size_t* bytes) {
  const hipMemAllocationProp properties = properties_of(device);
  return hipMemGetAllocationGranularity(bytes, &properties, hipMemAllocationGranularityRecommended);
}

Error create(Handle* handle, size_t bytes, int device) {
  const hipMemAllocationProp properties = properties_of(device);
  return hipMemCreate(handle, bytes, &properties, 0);
}

Error export_descriptor(Handle handle, int* descriptor) {
  return hipMemExportToShareableHandle(descriptor, handle, hipMemHandleTypePosixFileDescriptor, 0);
}

Error import_descriptor(Handle* handle, int descriptor) {
  // By value, in a pointer's clothes.
  void* const value = reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor));
  return hipMemImportFromShareableHandle(handle, value, hipMemHandleTypePosixFileDescriptor);
}

Error release(Handle handle) { return hipMemRelease(handle); }

Error reserve(void** address, size_t bytes, size_t alignment) {
  return hipMemAddressReserve(address, bytes, alignment, nullptr, 0);
}

Error give_up(void* address, size_t bytes) { return hipMemAddressFree(address, bytes); }

Error map(void* address, size_t bytes, Handle handle) {
  return hipMemMap(address, bytes, 0, handle, 0);
}

Error unmap(void* address, size_t bytes) { return hipMemUnmap(address, bytes); }

Error allow(void* address, size_t bytes, int device) {
  hipMemAccessDesc access{};
  access.location = location_of(device);
  access.flags = hipMemAccessFlagsProtReadWrite;
  return hipMemSetAccess(address, bytes, &access, 1);
}

}  // namespace symmoe::gpu::physical
