#pragma once

#include <memory>

#include "collectives/device/device_engine.h"

namespace symmoe {

// Where a call's rows are.
struct DeviceEngine::Source {
  const std::byte* send = nullptr;
  std::shared_ptr<Buffer> buffer = nullptr;  // null: the caller's own memory
  size_t offset = 0;
  bool from_sum = false;                           // a top-k sum wrote them, all that are wanted
  const kernels::TopkReduceLaunch* sum = nullptr;  // it is still to be made, by the path
  int slots = 0;                                   // of the sum
  RouteMask route = {};                            // of the call, where the sum has needed it
};

// Whether `path` would read rows that nobody wrote: an expert kernel left them out.
inline bool is_missing_rows(const DevicePath& path, const CallForm& form) {
  return form.routed && !form.from_sum && !takes_routing(path.kind());
}

}  // namespace symmoe
