// CUDA's driver has the functions, and is not linked: the library must load on a machine without
// it. The runtime hands out their addresses.

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "backends/gpu/physical_memory.h"

namespace symmoe::gpu::physical {
namespace {

// The driver that introduced the functions; their interface has not changed since.
constexpr unsigned int kDriverVersion = 10020;

struct Driver {
  const char* missing = nullptr;  // the first function that is not there
  decltype(&cuDeviceGetAttribute) device_get_attribute = nullptr;
  decltype(&cuMemGetAllocationGranularity) get_allocation_granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemExportToShareableHandle) export_to_shareable_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_from_shareable_handle = nullptr;
  decltype(&cuMemAddressReserve) address_reserve = nullptr;
  decltype(&cuMemAddressFree) address_free = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
};

void* entry_point(const char* symbol) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(symbol, &function, kDriverVersion,
                                                             cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(symbol, &function, cudaEnableDefault, &found);
#endif
  static_cast<void>(cudaGetLastError());
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : nullptr;
}

Driver look_up() {
  Driver driver;
  const auto find = [&](const char* symbol, auto* function) {
    void* const address = entry_point(symbol);
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(address);
    if (address == nullptr && driver.missing == nullptr) driver.missing = symbol;
  };
  find("cuDeviceGetAttribute", &driver.device_get_attribute);
  find("cuMemGetAllocationGranularity", &driver.get_allocation_granularity);
  find("cuMemCreate", &driver.create);
  find("cuMemRelease", &driver.release);
  find("cuMemExportToShareableHandle", &driver.export_to_shareable_handle);
  find("cuMemImportFromShareableHandle", &driver.import_from_shareable_handle);
  find("cuMemAddressReserve", &driver.address_reserve);
  find("cuMemAddressFree", &driver.address_free);
  find("cuMemMap", &driver.map);
  find("cuMemUnmap", &driver.unmap);
  find("cuMemSetAccess", &driver.set_access);
  return driver;
}

const Driver& driver() {
  static const Driver found = look_up();
  return found;
}

// The runtime's codes are the driver's, as far as these functions go.
template <typename... Parameters, typename... Arguments>
Error call(CUresult (*function)(Parameters...), Arguments... arguments) {
  if (function == nullptr) return cudaErrorNotSupported;
  return static_cast<Error>(function(arguments...));
}

CUdeviceptr address_of(void* address) { return reinterpret_cast<CUdeviceptr>(address); }

CUmemLocation location_of(int device) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

CUmemAllocationProp properties_of(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = location_of(device);
  return properties;
}

bool has(CUdevice_attribute attribute, int device) {
  int value = 0;
  return call(driver().device_get_attribute, &value, attribute, device) == cudaSuccess &&
         value != 0;
}

}  // namespace

const char* refusal(int device) {
  if (driver().missing != nullptr) return "the CUDA driver has no virtual memory management";
  if (!has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device)) {
    return "the device has no virtual memory management";
  }
  if (!has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device)) {
    return "the device's memory cannot have file descriptors";
  }
  return nullptr;
}

Error granularity(int device, size_t* bytes) {
  const CUmemAllocationProp properties = properties_of(device);
  return call(driver().get_allocation_granularity, bytes, &properties,
              CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
}

Error create(Handle* handle, size_t bytes, int device) {
  const CUmemAllocationProp properties = properties_of(device);
  return call(driver().create, handle, bytes, &properties, 0ULL);
}

Error export_descriptor(Handle handle, int* descriptor) {
  return call(driver().export_to_shareable_handle, static_cast<void*>(descriptor), handle,
              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0ULL);
}

Error import_descriptor(Handle* handle, int descriptor) {
  // By value, in a pointer's clothes.
  void* const value = reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor));
  return call(driver().import_from_shareable_handle, handle, value,
              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

Error release(Handle handle) { return call(driver().release, handle); }

Error reserve(void** address, size_t bytes, size_t alignment) {
  CUdeviceptr reserved = 0;
  const Error error =
      call(driver().address_reserve, &reserved, bytes, alignment, CUdeviceptr{0}, 0ULL);
  *address = reinterpret_cast<void*>(reserved);
  return error;
}

Error give_up(void* address, size_t bytes) {
  return call(driver().address_free, address_of(address), bytes);
}

Error map(void* address, size_t bytes, Handle handle) {
  return call(driver().map, address_of(address), bytes, size_t{0}, handle, 0ULL);
}

Error unmap(void* address, size_t bytes) {
  return call(driver().unmap, address_of(address), bytes);
}

Error allow(void* address, size_t bytes, int device) {
  CUmemAccessDesc access{};
  access.location = location_of(device);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return call(driver().set_access, address_of(address), bytes, &access, size_t{1});
}

}  // namespace symmoe::gpu::physical
