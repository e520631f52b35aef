// The device table over CUDA or ROCm: see runtime/device_table.h for what each function does.

#include "runtime/device_table.h"

#include <cstdio>

#include "backends/gpu/gpu_api.h"
#include "backends/gpu/shared_memory.h"
#include "backends/gpu/status.h"
#include "kernels/device/launch.h"

namespace symmoe::gpu {
namespace {

// Another handle of the default stream beside null: cudaStreamLegacy, hipStreamLegacy.
constexpr uintptr_t kLegacyStream = 1;

Stream stream_of(StreamHandle handle) { return static_cast<Stream>(handle); }
Event event_of(EventHandle handle) { return static_cast<Event>(handle); }

int device_count(int* count) {
  *count = 0;
  const Error error = SYMMOE_GPU(GetDeviceCount)(count);
  if (error != SYMMOE_GPU(ErrorNoDevice)) return status_of(error);
  static_cast<void>(SYMMOE_GPU(GetLastError)());
  *count = 0;
  return kDeviceOk;
}

int set_device(int device) { return status_of(SYMMOE_GPU(SetDevice)(device)); }

int current_device(int* device) { return status_of(SYMMOE_GPU(GetDevice)(device)); }

int properties(int device, DeviceProperties* properties) {
  Properties all{};
  const Error error = SYMMOE_GPU(GetDeviceProperties)(&all, device);
  if (error != SYMMOE_GPU(Success)) return status_of(error);
  *properties = {};
  const int shown = sizeof(properties->name) - 1;
  std::snprintf(properties->name, sizeof(properties->name), "%.*s", shown, all.name);
  properties->multiprocessors = all.multiProcessorCount;
  properties->major = all.major;
  properties->minor = all.minor;
  properties->total_bytes = all.totalGlobalMem;
  return status_of(
      SYMMOE_GPU(DeviceGetPCIBusId)(properties->bus_id, sizeof(properties->bus_id), device));
}

int memory(size_t* free_bytes, size_t* total_bytes) {
  return status_of(SYMMOE_GPU(MemGetInfo)(free_bytes, total_bytes));
}

int allocate(void** memory, size_t bytes) { return status_of(SYMMOE_GPU(Malloc)(memory, bytes)); }

int release(void* memory) { return status_of(SYMMOE_GPU(Free)(memory)); }

int allocate_pinned_memory(void** memory, size_t bytes) {
  return status_of(allocate_pinned(memory, bytes));
}

int release_pinned_memory(void* memory) { return status_of(release_pinned(memory)); }

int copy(void* destination, const void* source, size_t bytes, StreamHandle stream) {
  return status_of(SYMMOE_GPU(MemcpyAsync)(destination, source, bytes, SYMMOE_GPU(MemcpyDefault),
                                           stream_of(stream)));
}

int fill(void* memory, int byte, size_t bytes, StreamHandle stream) {
  return status_of(SYMMOE_GPU(MemsetAsync)(memory, byte, bytes, stream_of(stream)));
}

int stream_create(StreamHandle* stream) {
  Stream made = nullptr;
  const Error error = SYMMOE_GPU(StreamCreateWithFlags)(&made, SYMMOE_GPU(StreamNonBlocking));
  *stream = made;
  return status_of(error);
}

int stream_destroy(StreamHandle stream) {
  return status_of(SYMMOE_GPU(StreamDestroy)(stream_of(stream)));
}

int stream_synchronize(StreamHandle stream) {
  return status_of(SYMMOE_GPU(StreamSynchronize)(stream_of(stream)));
}

int stream_query(StreamHandle stream) {
  return status_of(SYMMOE_GPU(StreamQuery)(stream_of(stream)));
}

int stream_wait(StreamHandle stream, EventHandle event) {
  return status_of(SYMMOE_GPU(StreamWaitEvent)(stream_of(stream), event_of(event), 0));
}

int capture_state(StreamHandle stream, CaptureState* state) {
  *state = {false, 0};
  // The default stream cannot be captured, and being asked for it can break a capture elsewhere.
  if (reinterpret_cast<uintptr_t>(stream) <= kLegacyStream) return kDeviceOk;
  auto status = SYMMOE_GPU(StreamCaptureStatusNone);
  const Error error = capture_info(stream_of(stream), &status, &state->id);
  if (error != SYMMOE_GPU(Success)) return status_of(error);
  if (status == SYMMOE_GPU(StreamCaptureStatusInvalidated)) {
    return status_of(SYMMOE_GPU(ErrorStreamCaptureInvalidated));
  }
  state->active = status == SYMMOE_GPU(StreamCaptureStatusActive);
  return kDeviceOk;
}

int exchange_capture_mode(CaptureMode* mode) {
  auto exchanged = SYMMOE_GPU(StreamCaptureModeGlobal);
  if (*mode == kCaptureThreadLocal) exchanged = SYMMOE_GPU(StreamCaptureModeThreadLocal);
  if (*mode == kCaptureRelaxed) exchanged = SYMMOE_GPU(StreamCaptureModeRelaxed);
  const Error error = SYMMOE_GPU(ThreadExchangeStreamCaptureMode)(&exchanged);
  if (error != SYMMOE_GPU(Success)) return status_of(error);
  *mode = kCaptureGlobal;
  if (exchanged == SYMMOE_GPU(StreamCaptureModeThreadLocal)) *mode = kCaptureThreadLocal;
  if (exchanged == SYMMOE_GPU(StreamCaptureModeRelaxed)) *mode = kCaptureRelaxed;
  return kDeviceOk;
}

int event_create(EventHandle* event) {
  Event made = nullptr;
  const Error error = SYMMOE_GPU(EventCreateWithFlags)(&made, SYMMOE_GPU(EventDisableTiming));
  *event = made;
  return status_of(error);
}

int event_destroy(EventHandle event) {
  return status_of(SYMMOE_GPU(EventDestroy)(event_of(event)));
}

int event_record(EventHandle event, StreamHandle stream) {
  return status_of(SYMMOE_GPU(EventRecord)(event_of(event), stream_of(stream)));
}

int event_query(EventHandle event) { return status_of(SYMMOE_GPU(EventQuery)(event_of(event))); }

// Of the current device; asked of the runtime once per thread and device.
int multiprocessors(int* count) {
  thread_local int known_device = -1;
  thread_local int known_count = 0;
  int device = 0;
  Error error = SYMMOE_GPU(GetDevice)(&device);
  if (error == SYMMOE_GPU(Success) && device != known_device) {
    error = SYMMOE_GPU(DeviceGetAttribute)(&known_count, kMultiprocessorCount, device);
    known_device = error == SYMMOE_GPU(Success) ? device : -1;
  }
  *count = known_count;
  return status_of(error);
}

template <typename Launch>
int launch_with(int (*launcher)(const Launch&, int, void*), const Launch& launch,
                StreamHandle stream) {
  int count = 0;
  const int status = multiprocessors(&count);
  if (status != kDeviceOk) return status;
  return status_of(static_cast<Error>(launcher(launch, count, stream)));
}

int topk_reduce(const kernels::TopkReduceLaunch* launch, StreamHandle stream) {
  return launch_with(kernels::launch_topk_reduce, *launch, stream);
}

int rank_reduce(const kernels::RankReduceLaunch* launch, StreamHandle stream) {
  return launch_with(kernels::launch_rank_reduce, *launch, stream);
}

int copy_to_window(const kernels::CopyLaunch* launch, StreamHandle stream) {
  return launch_with(kernels::launch_copy_to_window, *launch, stream);
}

int route_mask(const kernels::RouteMaskLaunch* launch, StreamHandle stream) {
  return launch_with(kernels::launch_route_mask, *launch, stream);
}

int pull_reduce(const kernels::PullLaunch* launch, StreamHandle stream) {
  return launch_with(kernels::launch_pull_reduce, *launch, stream);
}

int combine(const kernels::CombineLaunch* launch, StreamHandle stream) {
  return launch_with(kernels::launch_combine, *launch, stream);
}

int apply_epilogue(const kernels::EpilogueLaunch* launch, StreamHandle stream) {
  return launch_with(kernels::launch_apply_epilogue, *launch, stream);
}

int pull_epilogue(const kernels::PullEpilogueLaunch* launch, StreamHandle stream) {
  return launch_with(kernels::launch_pull_epilogue, *launch, stream);
}

constexpr DeviceTable kTable = {
    .abi = kDeviceAbi,
    .kind = kKind,
    .error_text = text_of,
    .device_count = device_count,
    .set_device = set_device,
    .current_device = current_device,
    .properties = properties,
    .memory = memory,
    .allocate = allocate,
    .release = release,
    .allocate_pinned = allocate_pinned_memory,
    .release_pinned = release_pinned_memory,
    .shared_refusal = shared_refusal,
    .allocate_shared = allocate_shared,
    .map_shared = map_shared,
    .release_shared = release_shared,
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
}  // namespace symmoe::gpu

extern "C" __attribute__((visibility("default"))) const symmoe::DeviceTable* symmoe_device_table() {
  return &symmoe::gpu::kTable;
}
