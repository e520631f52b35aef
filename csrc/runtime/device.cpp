#include "runtime/device.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <utility>

#include "base/error.h"

namespace symmoe {
namespace {

std::atomic<uint64_t> forks = 0;

void count_fork() { forks.fetch_add(1); }

// The library stays for good: its threads and exit handlers would not survive its unloading.
const DeviceTable* load_table(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* reason = dlerror();
    throw Unavailable("device back end " + library + ": " + (reason ? reason : "dlopen failed"));
  }
  const auto get_table = reinterpret_cast<DeviceTableFunction>(dlsym(handle, kDeviceTableSymbol));
  if (get_table == nullptr) {
    throw Unavailable("device back end " + library + ": it does not export " + kDeviceTableSymbol);
  }
  const DeviceTable* table = get_table();
  if (table->abi != kDeviceAbi) {
    throw Unavailable("device back end " + library + ": its table has version " +
                      std::to_string(table->abi) + ", needed is " + std::to_string(kDeviceAbi));
  }
  return table;
}

}  // namespace

std::shared_ptr<Device> Device::open(const std::string& library, int ordinal) {
  static const int registered = pthread_atfork(nullptr, nullptr, count_fork);
  if (registered != 0) throw SystemError("device: pthread_atfork: no memory");

  const DeviceTable* table = load_table(library);
  const std::string kind = table->kind;
  int count = 0;
  if (const int status = table->device_count(&count); status != kDeviceOk) {
    throw Unavailable("no " + kind + " device: " + table->error_text(status));
  }
  if (count == 0) throw Unavailable("no " + kind + " device: there are 0 devices");
  if (ordinal < 0 || ordinal >= count) {
    throw Unavailable("no " + kind + " device " + std::to_string(ordinal) + ": there are " +
                      std::to_string(count) + " devices");
  }
  DeviceProperties properties{};
  if (const int status = table->properties(ordinal, &properties); status != kDeviceOk) {
    throw Unavailable(kind + " device " + std::to_string(ordinal) + ": " +
                      table->error_text(status));
  }
  return std::shared_ptr<Device>(new Device(table, ordinal, properties));
}

Device::Device(const DeviceTable* table, int ordinal, const DeviceProperties& properties)
    : table_(table), ordinal_(ordinal), properties_(properties), fork_generation_(forks.load()) {}

bool Device::usable() const { return forks.load() == fork_generation_; }

void Device::require(int status, const char* what) const {
  if (status == kDeviceOk) return;
  const std::string message = std::string(what) + ": " + table_->error_text(status);
  if (status == kDeviceOutOfMemory) throw OutOfMemory(message);
  throw DeviceError(message);
}

void Device::memory(size_t* free_bytes, size_t* total_bytes) const {
  const CurrentDevice current(*this);
  require(table_->memory(free_bytes, total_bytes), "memory of the device");
}

void Device::copy(void* destination, const void* source, size_t bytes, StreamHandle stream) const {
  const CurrentDevice current(*this);
  require(table_->copy(destination, source, bytes, stream), "copy");
}

void Device::fill(void* memory, int byte, size_t bytes, StreamHandle stream) const {
  const CurrentDevice current(*this);
  require(table_->fill(memory, byte, bytes, stream), "fill");
}

void Device::topk_reduce(const kernels::TopkReduceLaunch& launch, StreamHandle stream) const {
  const CurrentDevice current(*this);
  require(table_->topk_reduce(&launch, stream), "topk_reduce kernel");
}

void Device::rank_reduce(const kernels::RankReduceLaunch& launch, StreamHandle stream) const {
  const CurrentDevice current(*this);
  require(table_->rank_reduce(&launch, stream), "rank_reduce kernel");
}

void Device::copy_to_window(const kernels::CopyLaunch& launch, StreamHandle stream) const {
  const CurrentDevice current(*this);
  require(table_->copy_to_window(&launch, stream), "copy_to_window kernel");
}

std::string Device::shared_refusal(const std::string& peer_bus_id) const {
  const CurrentDevice current(*this);
  char reason[256] = {};
  require(table_->shared_refusal(peer_bus_id.empty() ? nullptr : peer_bus_id.c_str(), reason,
                                 sizeof(reason)),
          "question whether memory can be shared");
  return reason;
}

void Device::route_mask(const kernels::RouteMaskLaunch& launch, StreamHandle stream) const {
  const CurrentDevice current(*this);
  require(table_->route_mask(&launch, stream), "route_mask kernel");
}

void Device::pull_reduce(const kernels::PullLaunch& launch, StreamHandle stream) const {
  const CurrentDevice current(*this);
  require(table_->pull_reduce(&launch, stream), "pull_reduce kernel");
}

void Device::combine(const kernels::CombineLaunch& launch, StreamHandle stream) const {
  const CurrentDevice current(*this);
  require(table_->combine(&launch, stream), "combine kernel");
}

void Device::apply_epilogue(const kernels::EpilogueLaunch& launch, StreamHandle stream) const {
  const CurrentDevice current(*this);
  require(table_->apply_epilogue(&launch, stream), "apply_epilogue kernel");
}

void Device::pull_epilogue(const kernels::PullEpilogueLaunch& launch, StreamHandle stream) const {
  const CurrentDevice current(*this);
  require(table_->pull_epilogue(&launch, stream), "pull_epilogue kernel");
}

void Device::synchronize(StreamHandle stream) const {
  const CurrentDevice current(*this);
  require(table_->stream_synchronize(stream), "wait for a stream");
}

bool Device::idle(StreamHandle stream) const {
  const CurrentDevice current(*this);
  const int status = table_->stream_query(stream);
  if (status == kDeviceNotReady) return false;
  require(status, "query of a stream");
  return true;
}

CaptureState Device::capture_state(StreamHandle stream) const {
  const CurrentDevice current(*this);
  CaptureState state{};
  const int status = table_->capture_state(stream, &state);
  if (status == kDeviceInvalidCapture) {
    throw InvalidArgument(std::string("the stream is in a capture that has failed: ") +
                          table_->error_text(status));
  }
  require(status, "capture state of a stream");
  return state;
}

void Device::adopt_thread() const {
  if (usable()) require(table_->set_device(ordinal_), "choice of the device");
}

CurrentDevice::CurrentDevice(const Device& device) : device_(device), previous_(device.ordinal()) {
  if (!device.usable()) {
    throw Closed("this process is a fork of the one that opened the " + std::string(device.kind()) +
                 " device: it has no access to it");
  }
  device.require(device.table().current_device(&previous_), "current device");
  if (previous_ != device.ordinal()) {
    device.require(device.table().set_device(device.ordinal()), "choice of the device");
  }
}

CurrentDevice::~CurrentDevice() {
  if (previous_ != device_.ordinal()) device_.table().set_device(previous_);
}

}  // namespace symmoe
