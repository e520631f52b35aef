#pragma once

#include <atomic>
#include <cstdint>

#include "collectives/device/caller.h"
#include "runtime/stream.h"

namespace symmoe {

// What is remembered of one role's lane: its calls come one after the other on the device as well,
// also when they come on different streams.
class DeviceLane {
 public:
  explicit DeviceLane(const std::shared_ptr<Device>& device) : eager_(device), captured_(device) {}

  // Makes what `stream` is given from now on wait for the lane's last call. Throws InvalidArgument
  // in a capture that would have to wait for work outside of it.
  void order(StreamHandle stream, const CaptureState& capture, const Device& device,
             const Caller& caller);

  // Notes that a call was queued on `stream` just now.
  void note(StreamHandle stream, const CaptureState& capture);

  // Whether all calls so far have ended, apart from those in graphs. From any thread.
  bool done() const;
  // Since when the last call is on its way; 0 if it has ended. From any thread.
  int64_t pending_since_ns();

  std::atomic_flag busy;  // a thread is in a call

 private:
  Event eager_;  // behind the last call outside of captures
  std::atomic<StreamHandle> stream_ = nullptr;
  std::atomic<int64_t> since_ns_ = 0;  // when that call was queued; 0: none, or it has ended
  std::atomic<bool> recorded_ = false;
  Event captured_;  // behind the last call of `capture_`
  StreamHandle captured_stream_ = nullptr;
  uint64_t capture_ = 0;
};

// Takes a lane for one call; a second thread on it is the caller's mistake.
class LaneCall {
 public:
  LaneCall(DeviceLane& lane, const Caller& caller);
  ~LaneCall();
  LaneCall(const LaneCall&) = delete;
  LaneCall& operator=(const LaneCall&) = delete;

  // The lane stays taken for good.
  void keep() { kept_ = true; }

 private:
  DeviceLane& lane_;
  bool kept_ = false;
};

}  // namespace symmoe
