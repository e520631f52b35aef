// The device table over the host: see runtime/device_table.h for what each function does.

#include "runtime/device_table.h"

#include <cstdio>
#include <cstring>

#include "backends/host/call.h"
#include "backends/host/launches.h"
#include "backends/host/memory.h"
#include "backends/host/runtime.h"
#include "backends/host/shared_memory.h"

namespace symmoe::host {
namespace {

constexpr int kDevices = 8;  // which are all the same host

thread_local int device_of_thread = 0;

void require_device(int device) {
  if (device < 0 || device >= kDevices) {
    throw Refusal{kInvalidArgument,
                  "device " + std::to_string(device) + " of " + std::to_string(kDevices)};
  }
}

int device_count(int* count) {
  return call("device_count", [&] { *count = kDevices; });
}

int set_device(int device) {
  return call("set_device", [&] {
    require_device(device);
    device_of_thread = device;
  });
}

int current_device(int* device) {
  return call("current_device", [&] { *device = device_of_thread; });
}

int properties(int device, DeviceProperties* properties) {
  return call("properties", [&] {
    require_device(device);
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "host emulation");
    properties->multiprocessors = multiprocessors();
    properties->total_bytes = physical_bytes();
    std::snprintf(properties->bus_id, sizeof(properties->bus_id), "host:%d", device);
  });
}

int memory(size_t* free_bytes, size_t* total_bytes) {
  return call("memory", [&] { memory_state(free_bytes, total_bytes); });
}

int allocate_device(void** memory, size_t bytes) {
  return call("allocate", [&] {
    Runtime::instance().refuse_disturbance("allocate");
    *memory = allocate(MemoryKind::kDevice, bytes);
  });
}

int release_device(void* memory) {
  return call("release", [&] {
    Runtime::instance().refuse_disturbance("release");
    release(MemoryKind::kDevice, memory);
  });
}

int allocate_pinned(void** memory, size_t bytes) {
  return call("allocate_pinned", [&] {
    Runtime::instance().refuse_disturbance("allocate_pinned");
    *memory = allocate(MemoryKind::kPinned, bytes);
  });
}

int release_pinned(void* memory) {
  return call("release_pinned", [&] {
    Runtime::instance().refuse_disturbance("release_pinned");
    release(MemoryKind::kPinned, memory);
  });
}

int shared_refusal(const char* /*peer*/, char* reason, size_t /*capacity*/) {
  return call("shared_refusal", [&] { reason[0] = '\0'; });
}

int allocate_shared_device(void** memory, size_t bytes, int* descriptor) {
  return call("allocate_shared", [&] {
    Runtime::instance().refuse_disturbance("allocate_shared");
    *memory = allocate_shared(bytes, descriptor);
  });
}

int map_shared_device(void** memory, int descriptor, size_t bytes) {
  return call("map_shared", [&] {
    Runtime::instance().refuse_disturbance("map_shared");
    *memory = map_shared(descriptor, bytes);
  });
}

int release_shared_device(void* memory, size_t bytes) {
  return call("release_shared", [&] {
    Runtime::instance().refuse_disturbance("release_shared");
    release_shared(memory, bytes);
  });
}

int copy(void* destination, const void* source, size_t bytes, StreamHandle stream) {
  return call("copy", [&] {
    if (bytes == 0) return;
    Runtime::instance().enqueue(stream,
                                make_work([=] { std::memcpy(destination, source, bytes); }));
    count_work("copy");
  });
}

int fill(void* memory, int byte, size_t bytes, StreamHandle stream) {
  return call("fill", [&] {
    if (bytes == 0) return;
    Runtime::instance().enqueue(stream, make_work([=] { std::memset(memory, byte, bytes); }));
    count_work("fill");
  });
}

int stream_create(StreamHandle* stream) {
  return call("stream_create", [&] { *stream = Runtime::instance().create_stream(); });
}

int stream_destroy(StreamHandle stream) {
  return call("stream_destroy", [&] { Runtime::instance().destroy_stream(stream); });
}

int stream_synchronize(StreamHandle stream) {
  return call("stream_synchronize", [&] { Runtime::instance().synchronize(stream); });
}

int stream_query(StreamHandle stream) {
  return call("stream_query", [&]() -> int {
    return Runtime::instance().idle(stream) ? kDeviceOk : kDeviceNotReady;
  });
}

int stream_wait(StreamHandle stream, EventHandle event) {
  return call("stream_wait", [&] { Runtime::instance().wait(stream, event); });
}

int capture_state(StreamHandle stream, CaptureState* state) {
  return call("capture_state", [&] { *state = Runtime::instance().capture_state(stream); });
}

int exchange_capture_mode(CaptureMode* mode) {
  return call("exchange_capture_mode", [&] { *mode = Captures::exchange_mode(*mode); });
}

int event_create(EventHandle* event) {
  return call("event_create", [&] { *event = Runtime::instance().create_event(); });
}

int event_destroy(EventHandle event) {
  return call("event_destroy", [&] { Runtime::instance().destroy_event(event); });
}

int event_record(EventHandle event, StreamHandle stream) {
  return call("event_record", [&] { Runtime::instance().record(event, stream); });
}

int event_query(EventHandle event) {
  return call("event_query", [&]() -> int {
    return Runtime::instance().passed(event) ? kDeviceOk : kDeviceNotReady;
  });
}

int topk_reduce(const kernels::TopkReduceLaunch* arguments, StreamHandle stream) {
  return call("topk_reduce", [&] { launch_topk_reduce(*arguments, stream); });
}

int rank_reduce(const kernels::RankReduceLaunch* arguments, StreamHandle stream) {
  return call("rank_reduce", [&] { launch_rank_reduce(*arguments, stream); });
}

int copy_to_window(const kernels::CopyLaunch* arguments, StreamHandle stream) {
  return call("copy_to_window", [&] { launch_copy_to_window(*arguments, stream); });
}

int route_mask(const kernels::RouteMaskLaunch* arguments, StreamHandle stream) {
  return call("route_mask", [&] { launch_route_mask(*arguments, stream); });
}

int pull_reduce(const kernels::PullLaunch* arguments, StreamHandle stream) {
  return call("pull_reduce", [&] { launch_pull_reduce(*arguments, stream); });
}

int combine(const kernels::CombineLaunch* arguments, StreamHandle stream) {
  return call("combine", [&] { launch_combine(*arguments, stream); });
}

int apply_epilogue(const kernels::EpilogueLaunch* arguments, StreamHandle stream) {
  return call("apply_epilogue", [&] { launch_apply_epilogue(*arguments, stream); });
}

int pull_epilogue(const kernels::PullEpilogueLaunch* arguments, StreamHandle stream) {
  return call("pull_epilogue", [&] { launch_pull_epilogue(*arguments, stream); });
}

constexpr DeviceTable kTable = {
    .abi = kDeviceAbi,
    .kind = "host",
    .error_text = text_of,
    .device_count = device_count,
    .set_device = set_device,
    .current_device = current_device,
    .properties = properties,
    .memory = memory,
    .allocate = allocate_device,
    .release = release_device,
    .allocate_pinned = allocate_pinned,
    .release_pinned = release_pinned,
    .shared_refusal = shared_refusal,
    .allocate_shared = allocate_shared_device,
    .map_shared = map_shared_device,
    .release_shared = release_shared_device,
    .copy = copy,
    .fill = fill,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_synchronize = stream_synchronize,
    .stream_query = stream_query,
    .stream_wait = stream_wait,
    .capture_state = capture_state,
    .exchange_capture_mode = exchange_capture_mode,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .topk_reduce = topk_reduce,
    .rank_reduce = rank_reduce,
    .copy_to_window = copy_to_window,
    .route_mask = route_mask,
    .pull_reduce = pull_reduce,
    .combine = combine,
    .apply_epilogue = apply_epilogue,
    .pull_epilogue = pull_epilogue,
};

}  // namespace
}  // namespace symmoe::host

extern "C" __attribute__((visibility("default"))) const symmoe::DeviceTable* symmoe_device_table() {
  return &symmoe::host::kTable;
}
