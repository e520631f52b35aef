// The CUDA back end's memory with descriptors, over a driver made up here: which calls it makes,
// and that whatever fails on the way leaves nothing behind. The real driver is met by
// runtime_cuda_test on machines that have one.

#include "check.h"

using namespace symmoe::check;

#ifdef SYMMOE_CUDA_LIBRARY

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "backends/gpu/shared_memory.h"
#include "backends/gpu/status.h"
#include "own_process.h"
#include "rank_processes.h"

using namespace symmoe;

namespace {

constexpr size_t kGranule = size_t{2} << 20;

// What the driver and the runtime would know.
struct Driver {
  int calls = 0;
  int failing = 0;  // the number of the call that fails; 0: none
  bool has_functions = true;
  int managed = 1;  // the attributes
  int exportable = 1;
  int reaches_peer = 1;
  int next = 0;
  std::map<CUmemGenericAllocationHandle, ino_t> handles;  // not released
  std::map<CUdeviceptr, size_t> ranges;
  std::map<CUdeviceptr, size_t> mapped;
  std::set<CUdeviceptr> allowed;
};

Driver driver;

// A call that can be told to fail.
bool fails() { return ++driver.calls == driver.failing; }

CUresult get_attribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  CHECK_EQ(device, 0);
  *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ? driver.managed
                                                                                : driver.exportable;
  return CUDA_SUCCESS;
}

CUresult get_granularity(size_t* bytes, const CUmemAllocationProp* properties,
                         CUmemAllocationGranularity_flags) {
  if (fails()) return CUDA_ERROR_INVALID_VALUE;
  CHECK_EQ(properties->type, CU_MEM_ALLOCATION_TYPE_PINNED);
  CHECK_EQ(properties->requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CHECK_EQ(properties->location.id, 0);
  *bytes = kGranule;
  return CUDA_SUCCESS;
}

CUresult create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp*,
                unsigned long long) {
  if (fails()) return CUDA_ERROR_OUT_OF_MEMORY;
  CHECK_EQ(bytes % kGranule, size_t{0});
  *handle = static_cast<CUmemGenericAllocationHandle>(++driver.next);
  driver.handles[*handle] = 0;
  return CUDA_SUCCESS;
}

CUresult release(CUmemGenericAllocationHandle handle) {
  CHECK_EQ(driver.handles.erase(handle), size_t{1});
  return CUDA_SUCCESS;
}

ino_t file_of(int descriptor) {
  struct stat status{};
  CHECK_EQ(fstat(descriptor, &status), 0);
  return status.st_ino;
}

CUresult export_handle(void* descriptor, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long) {
  if (fails()) return CUDA_ERROR_NOT_SUPPORTED;
  CHECK_EQ(type, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const int made = memfd_create("exported", 0);
  driver.handles.at(handle) = file_of(made);
  std::memcpy(descriptor, &made, sizeof(made));
  return CUDA_SUCCESS;
}

CUresult import_handle(CUmemGenericAllocationHandle* handle, void* value,
                       CUmemAllocationHandleType) {
  if (fails()) return CUDA_ERROR_INVALID_DEVICE;
  *handle = static_cast<CUmemGenericAllocationHandle>(++driver.next);
  driver.handles[*handle] = file_of(static_cast<int>(reinterpret_cast<uintptr_t>(value)));
  return CUDA_SUCCESS;
}

CUresult reserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr,
                 unsigned long long) {
  if (fails()) return CUDA_ERROR_OUT_OF_MEMORY;
  CHECK_EQ(alignment, kGranule);
  *address = static_cast<CUdeviceptr>(++driver.next) * kGranule * 100;
  driver.ranges[*address] = bytes;
  return CUDA_SUCCESS;
}

CUresult give_up(CUdeviceptr address, size_t bytes) {
  if (fails()) return CUDA_ERROR_INVALID_VALUE;
  CHECK_EQ(driver.ranges.at(address), bytes);
  CHECK_EQ(driver.mapped.count(address), size_t{0});
  driver.ranges.erase(address);
  return CUDA_SUCCESS;
}

CUresult map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long) {
  if (fails()) return CUDA_ERROR_INVALID_VALUE;
  CHECK_EQ(driver.ranges.at(address), bytes);
  CHECK_EQ(offset, size_t{0});
  CHECK_EQ(driver.handles.count(handle), size_t{1});
  driver.mapped[address] = bytes;
  return CUDA_SUCCESS;
}

CUresult unmap(CUdeviceptr address, size_t bytes) {
  if (fails()) return CUDA_ERROR_INVALID_VALUE;
  CHECK_EQ(driver.mapped.at(address), bytes);
  driver.mapped.erase(address);
  driver.allowed.erase(address);
  return CUDA_SUCCESS;
}

CUresult allow(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  if (fails()) return CUDA_ERROR_INVALID_DEVICE;
  CHECK_EQ(driver.mapped.at(address), bytes);
  CHECK_EQ(count, size_t{1});
  CHECK_EQ(access->location.id, 0);
  CHECK_EQ(access->flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  driver.allowed.insert(address);
  return CUDA_SUCCESS;
}

const std::map<std::string, void*>& functions() {
  static const std::map<std::string, void*> all = {
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(get_attribute)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(get_granularity)},
      {"cuMemCreate", reinterpret_cast<void*>(create)},
      {"cuMemRelease", reinterpret_cast<void*>(release)},
      {"cuMemExportToShareableHandle", reinterpret_cast<void*>(export_handle)},
      {"cuMemImportFromShareableHandle", reinterpret_cast<void*>(import_handle)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(give_up)},
      {"cuMemMap", reinterpret_cast<void*>(map)},
      {"cuMemUnmap", reinterpret_cast<void*>(unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(allow)}};
  return all;
}

cudaError_t find_function(const char* symbol, void** function,
                          cudaDriverEntryPointQueryResult* status) {
  const auto found = functions().find(symbol);
  const bool there = driver.has_functions && found != functions().end();
  *function = there ? found->second : nullptr;
  *status = there ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

void require_nothing_left(size_t descriptors, const std::string& when) {
  CHECK_MSG(driver.handles.empty() && driver.ranges.empty() && driver.mapped.empty(), when);
  CHECK_MSG(open_descriptors() == descriptors, when);
}

// Each test has a driver of its own, and looks its functions up anew.
void in_own_process(const std::function<void()>& body) {
  CHECK_EQ(finish_process(start_process(body)), 0);
}

std::string refusal_towards(const char* peer) {
  char reason[100] = "?";
  CHECK_EQ(gpu::shared_refusal(peer, reason, sizeof(reason)), int{kDeviceOk});
  return reason;
}

}  // namespace

// The runtime, as far as the back end's files ask it.
extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return fails() ? cudaErrorInitializationError : cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  CHECK(memory == nullptr);
  return fails() ? cudaErrorInitializationError : cudaSuccess;
}
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* bus_id) {
  *device = std::strcmp(bus_id, "0000:0a:00.0") == 0 ? 0 : 1;
  return std::strcmp(bus_id, "hidden") == 0 ? cudaErrorInvalidDevice : cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* reached, int device, int peer) {
  CHECK_EQ(device, 0);
  CHECK_EQ(peer, 1);
  *reached = driver.reaches_peer;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "some error"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorSome"; }
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  return find_function(symbol, function, status);
}
#else
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* status) {
  return find_function(symbol, function, status);
}
#endif

}  // extern "C"

TEST(memory_is_made_exported_mapped_and_given_back) {
  in_own_process([] {
    const size_t before = open_descriptors();
    void* own = nullptr;
    int descriptor = -1;
    CHECK_EQ(gpu::allocate_shared(&own, kGranule + 1, &descriptor), int{kDeviceOk});
    CHECK_EQ(fcntl(descriptor, F_GETFD), FD_CLOEXEC);
    void* mapped = nullptr;
    CHECK_EQ(gpu::map_shared(&mapped, descriptor, kGranule + 1), int{kDeviceOk});
    close(descriptor);
    CHECK(own != mapped);
    // The mappings keep the memory, so the handles are gone.
    CHECK(driver.handles.empty());
    CHECK_EQ(driver.allowed.size(), size_t{2});
    for (const auto& [address, bytes] : driver.mapped) CHECK_EQ(bytes, 2 * kGranule);
    CHECK_EQ(gpu::release_shared(mapped, kGranule + 1), int{kDeviceOk});
    CHECK_EQ(gpu::release_shared(own, kGranule + 1), int{kDeviceOk});
    require_nothing_left(before, "all given back");
  });
}

TEST(whichever_call_fails_leaves_nothing) {
  in_own_process([] {
    const size_t before = open_descriptors();
    int status = kVendorStatus;
    int failures = 0;
    void* memory = nullptr;
    int descriptor = -1;
    for (int number = 1; status != kDeviceOk; ++number) {
      driver.calls = 0;
      driver.failing = number;
      status = gpu::allocate_shared(&memory, 100, &descriptor);
      if (status == kDeviceOk) break;
      ++failures;
      CHECK(memory == nullptr);
      CHECK_EQ(descriptor, -1);
      require_nothing_left(before, "call " + std::to_string(number) + " of an allocation");
    }
    CHECK_EQ(failures, 8);  // device, context, granularity, create, export, reserve, map, access
    void* mapped = nullptr;
    status = kVendorStatus;
    for (int number = 1; status != kDeviceOk; ++number) {
      driver.calls = 0;
      driver.failing = number;
      status = gpu::map_shared(&mapped, descriptor, 100);
      if (status == kDeviceOk) break;
      ++failures;
      CHECK(mapped == nullptr);
      CHECK(driver.handles.empty());
      CHECK_EQ(driver.ranges.size(), size_t{1});
      CHECK_EQ(driver.mapped.size(), size_t{1});
    }
    CHECK_EQ(failures, 8 + 7);
    driver.failing = 0;
    close(descriptor);
    CHECK_EQ(gpu::release_shared(mapped, 100), int{kDeviceOk});
    CHECK_EQ(gpu::release_shared(memory, 100), int{kDeviceOk});
    require_nothing_left(before, "all given back");
  });
}

TEST(a_lack_of_memory_is_told_from_other_failures) {
  in_own_process([] {
    void* memory = nullptr;
    int descriptor = -1;
    driver.failing = 4;
    CHECK_EQ(gpu::allocate_shared(&memory, 100, &descriptor), int{kDeviceOutOfMemory});
    driver.calls = 0;
    driver.failing = 5;
    const int status = gpu::allocate_shared(&memory, 100, &descriptor);
    CHECK_EQ(status, kVendorStatus + static_cast<int>(cudaErrorNotSupported));
    CHECK_EQ(std::string(gpu::text_of(status)), "some error (cudaErrorSome, 801)");
  });
}

TEST(why_memory_cannot_be_shared) {
  in_own_process([] {
    CHECK_EQ(refusal_towards(nullptr), "");
    CHECK_EQ(refusal_towards("0000:0a:00.0"), "");  // itself
    CHECK_EQ(refusal_towards("0000:0b:00.0"), "");
    driver.reaches_peer = 0;
    CHECK_EQ(refusal_towards("0000:0b:00.0"),
             "the device has no access to the memory of the one at 0000:0b:00.0");
    CHECK_EQ(refusal_towards("0000:0a:00.0"), "");
    CHECK_EQ(refusal_towards("hidden"), "");  // the mapping will tell
    driver.exportable = 0;
    CHECK_EQ(refusal_towards(nullptr), "the device's memory cannot have file descriptors");
    driver.managed = 0;
    CHECK_EQ(refusal_towards(nullptr), "the device has no virtual memory management");
  });
  in_own_process([] {
    driver.has_functions = false;
    CHECK_EQ(refusal_towards(nullptr), "the CUDA driver has no virtual memory management");
    void* memory = nullptr;
    int descriptor = -1;
    CHECK(gpu::allocate_shared(&memory, 100, &descriptor) >= kVendorStatus);
  });
}

#else

TEST(this_build_has_no_cuda_back_end) {
  std::printf("no CUDA back end in this build (no nvcc, or a sanitizer): it is not tested here\n");
}

#endif

int main(int argc, char** argv) { return run_all(argc, argv); }
