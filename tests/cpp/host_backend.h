#pragma once

// The host back end, opened by its path as the core does it, with what it exports beside its table.

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "backends/host/host_api.h"
#include "base/clock.h"
#include "check.h"
#include "runtime/device.h"
#include "runtime/device_memory.h"
#include "runtime/stream.h"

namespace symmoe::check {

template <typename Function>
Function* host_function(const char* name) {
  void* library = dlopen(SYMMOE_HOST_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail(__FILE__, __LINE__, dlerror());
  void* function = dlsym(library, name);
  if (function == nullptr) fail(__FILE__, __LINE__, std::string("no symbol ") + name);
  return reinterpret_cast<Function*>(function);
}

#define SYMMOE_HOST_FUNCTION(name)       \
  decltype(::symmoe_host_##name)* name = \
      host_function<decltype(::symmoe_host_##name)>("symmoe_host_" #name)

struct HostFunctions {
  SYMMOE_HOST_FUNCTION(enqueue);
  SYMMOE_HOST_FUNCTION(begin_capture);
  SYMMOE_HOST_FUNCTION(end_capture);
  SYMMOE_HOST_FUNCTION(launch_graph);
  SYMMOE_HOST_FUNCTION(destroy_graph);
  SYMMOE_HOST_FUNCTION(delay);
  SYMMOE_HOST_FUNCTION(synchronize);
  SYMMOE_HOST_FUNCTION(limit_memory);
  SYMMOE_HOST_FUNCTION(live_bytes);
  SYMMOE_HOST_FUNCTION(account);
  SYMMOE_HOST_FUNCTION(fail);
  SYMMOE_HOST_FUNCTION(count);
};

#undef SYMMOE_HOST_FUNCTION

inline const HostFunctions& host() {
  static const HostFunctions functions;
  return functions;
}

inline std::shared_ptr<Device> open_host(int ordinal = 0) {
  return Device::open(SYMMOE_HOST_LIBRARY, ordinal);
}

inline const DeviceTable& host_table() {
  static const DeviceTable& table = open_host()->table();
  return table;
}

// Queues a callable, which goes away after its (last) run.
template <typename Body>
int enqueue(StreamHandle stream, Body body) {
  auto context = std::make_unique<Body>(std::move(body));
  const int status = host().enqueue(
      stream, [](void* held) { (*static_cast<Body*>(held))(); },
      [](void* held) { delete static_cast<Body*>(held); }, context.get());
  if (status == kDeviceOk) static_cast<void>(context.release());
  return status;
}

// A stream that stands still until the gate opens.
class Gate {
 public:
  Gate() = default;
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void close(StreamHandle stream) const {
    CHECK_EQ(enqueue(stream, [state = state_] { state->wait(false); }), int{kDeviceOk});
  }
  void open() const {
    state_->store(true);
    state_->notify_all();
  }

 private:
  std::shared_ptr<std::atomic<bool>> state_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace symmoe::check
