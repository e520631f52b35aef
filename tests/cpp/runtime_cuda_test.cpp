// The CUDA back end where there may be no driver: it loads, and every call gives an error or works;
// none crashes. On a machine with a GPU the same calls are used in earnest by tests/gpu.

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "check.h"
#include "runtime/device.h"
#include "runtime/device_memory.h"
#include "runtime/shared_device_memory.h"
#include "runtime/stream.h"

using namespace symmoe;
using namespace symmoe::check;

#ifdef SYMMOE_CUDA_LIBRARY

namespace {

const DeviceTable& cuda_table() {
  void* library = dlopen(SYMMOE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail(__FILE__, __LINE__, dlerror());
  void* function = dlsym(library, kDeviceTableSymbol);
  CHECK(function != nullptr);
  return *reinterpret_cast<DeviceTableFunction>(function)();
}

bool has_device() {
  int count = 0;
  return cuda_table().device_count(&count) == kDeviceOk && count > 0;
}

}  // namespace

TEST(it_loads_and_shows_its_table_only) {
  CHECK_EQ(cuda_table().abi, kDeviceAbi);
  CHECK_EQ(std::string(cuda_table().kind), "cuda");
  void* library = dlopen(SYMMOE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  CHECK(library != nullptr);
  // The runtime inside must not get between the process and a runtime of its own.
  CHECK(dlsym(library, "cudaMalloc") == nullptr);
  CHECK(dlsym(library, "cuInit") == nullptr);
  CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) == nullptr || has_device());
}

// The driver's functions come from the runtime, at run time.
TEST(the_driver_is_not_linked) {
  void* library = dlopen(SYMMOE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  CHECK(library != nullptr);
  link_map* map = nullptr;
  CHECK_EQ(dlinfo(library, RTLD_DI_LINKMAP, static_cast<void*>(&map)), 0);
  const char* names = nullptr;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(entry->d_un.d_ptr);
  }
  CHECK(names != nullptr);
  int needed = 0;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag != DT_NEEDED) continue;
    ++needed;
    CHECK_MSG(std::strstr(names + entry->d_un.d_val, "cuda") == nullptr, names + entry->d_un.d_val);
  }
  CHECK(needed > 0);
}

TEST(opening_works_or_says_what_is_missing) {
  if (has_device()) {
    CHECK(Device::open(SYMMOE_CUDA_LIBRARY, 0)->properties().multiprocessors > 0);
    return;
  }
  CHECK_THROWS_WITH(Device::open(SYMMOE_CUDA_LIBRARY, 0), Unavailable, "no cuda device: ");
  int count = -1;
  const int status = cuda_table().device_count(&count);
  if (status == kDeviceOk) {
    CHECK_THROWS_WITH(Device::open(SYMMOE_CUDA_LIBRARY, 0), Unavailable, "0 devices");
  } else if (dlopen("libcuda.so.1", RTLD_NOW) == nullptr) {
    CHECK_THROWS_WITH(Device::open(SYMMOE_CUDA_LIBRARY, 0), Unavailable, "no CUDA driver");
  }
}

TEST(without_a_device_every_call_gives_an_error) {
  if (has_device()) {
    std::printf("there is a device: not tested\n");
    return;
  }
  const DeviceTable& table = cuda_table();
  void* memory = nullptr;
  StreamHandle stream = nullptr;
  EventHandle event = nullptr;
  DeviceProperties properties{};
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  int device = 0;
  int descriptor = 0;
  char reason[64] = {};
  char data[64] = {};
  const kernels::TopkReduceLaunch topk{
      .input = data, .output = data, .tokens = 1, .slots = 1, .hidden = 1};
  const kernels::RankReduceLaunch ranks{
      .own = data, .gathered = data, .output = data, .count = 1, .ranks = 1};
  const kernels::CopyLaunch copy{.source = data, .destination = data + 32, .bytes = 32};
  const kernels::EpilogueLaunch epilogue{.input = data, .output = data, .rows = 1, .hidden = 1};
  const int statuses[] = {
      table.properties(0, &properties),
      table.set_device(0),
      table.current_device(&device),
      table.memory(&free_bytes, &total_bytes),
      table.allocate(&memory, 64),
      table.allocate_pinned(&memory, 64),
      table.shared_refusal(nullptr, reason, sizeof(reason)),
      table.allocate_shared(&memory, 64, &descriptor),
      table.map_shared(&memory, 0, 64),
      table.release_shared(data, 64),
      table.copy(data, data + 32, 32, nullptr),
      table.fill(data, 0, 64, nullptr),
      table.stream_create(&stream),
      table.stream_synchronize(nullptr),
      table.stream_query(nullptr),
      table.event_create(&event),
      table.topk_reduce(&topk, nullptr),
      table.rank_reduce(&ranks, nullptr),
      table.copy_to_window(&copy, nullptr),
      table.apply_epilogue(&epilogue, nullptr),
  };
  int number = 0;
  for (const int status : statuses) {
    CHECK_MSG(status >= kVendorStatus,
              "call " + std::to_string(number) + ": " + std::to_string(status));
    CHECK(std::strlen(table.error_text(status)) > 0);
    ++number;
  }
}

TEST(codes_of_the_runtime_have_their_texts) {
  const DeviceTable& table = cuda_table();
  const std::string text = table.error_text(kVendorStatus + 719);
  CHECK_MSG(text.find("cudaErrorLaunchFailure") != std::string::npos, text);
  CHECK_EQ(std::string(table.error_text(kDeviceOk)), "no error");
}

TEST(memory_streams_and_events_work_where_there_is_a_device) {
  if (!has_device()) {
    std::printf("there is no device: not tested\n");
    return;
  }
  const auto device = Device::open(SYMMOE_CUDA_LIBRARY, 0);
  const Stream stream(device);
  Event event(device);
  const DeviceMemory memory(device, 100);
  const PinnedMemory pinned(device, 100);
  device->fill(memory.get(), 7, 100, stream.handle());
  const kernels::CopyLaunch launch{
      .source = memory.get(), .destination = pinned.get(), .bytes = 100};
  device->copy_to_window(launch, stream.handle());
  event.record(stream.handle());
  stream.synchronize();
  CHECK(event.done());
  CHECK(device->idle(stream.handle()));
  CHECK(!device->capture_state(stream.handle()).active);
  CHECK_EQ(static_cast<const unsigned char*>(pinned.get())[99], 7);
}

TEST(memory_with_a_descriptor_works_where_there_is_a_device) {
  if (!has_device()) {
    std::printf("there is no device: not tested\n");
    return;
  }
  const auto device = Device::open(SYMMOE_CUDA_LIBRARY, 0);
  CHECK_EQ(device->shared_refusal(device->properties().bus_id), "");
  int descriptor = -1;
  const SharedDeviceMemory own = SharedDeviceMemory::create(device, 100, &descriptor);
  const SharedDeviceMemory mapped = SharedDeviceMemory::attach(device, descriptor, 100);
  close(descriptor);
  CHECK(own.get() != mapped.get());
  const Stream stream(device);
  const PinnedMemory pinned(device, 100);
  device->fill(own.get(), 7, 100, stream.handle());
  stream.synchronize();
  device->copy(pinned.get(), mapped.get(), 100, stream.handle());
  stream.synchronize();
  CHECK_EQ(static_cast<const unsigned char*>(pinned.get())[99], 7);
}

#else

TEST(this_build_has_no_cuda_back_end) {
  std::printf("no CUDA back end in this build (no nvcc, or a sanitizer): it is not tested here\n");
}

#endif

int main(int argc, char** argv) { return run_all(argc, argv); }
