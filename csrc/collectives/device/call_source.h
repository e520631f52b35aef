#pragma once

#include <memory>
#include <optional>

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

// Where a call's rows go: memory of the caller, or the "dispatch" window of the call's lane, for
// consumers to read them there. That window's lane counts the call among its own, so that whoever
// gets the window next comes behind it.
class DeviceEngine::Output {
 public:
  // `window`: as output_window found it. Takes its lane for the call, unless `plan` is of that lane
  // itself: then it is taken already. Throws InvalidArgument if it must not be written now.
  Output(DeviceEngine& engine, const Plan& plan, std::shared_ptr<Buffer> window);

  // What `stream` is given from now on comes behind the window's last use.
  void wait_in(StreamHandle stream, const CaptureState& capture) const;
  // A call that writes the window was queued on `stream` just now.
  void used_in(StreamHandle stream, const CaptureState& capture) const;
  // Gathered rows are the last thing that the window was acquired for.
  void use_up() const;

 private:
  DeviceEngine& engine_;
  std::shared_ptr<Buffer> window_;  // null: the caller's memory
  DeviceLane* lane_ = nullptr;      // the window's, where the call is of another one
  std::optional<LaneCall> taken_;   // of that
  Plan::Kind kind_;
};

// Whether `path` would read rows that nobody wrote: an expert kernel left them out.
inline bool is_missing_rows(const DevicePath& path, const CallForm& form) {
  return form.routed && !form.from_sum && !takes_routing(path.kind());
}

}  // namespace symmoe
