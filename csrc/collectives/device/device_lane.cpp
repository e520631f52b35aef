#include "collectives/device/device_lane.h"

#include "base/clock.h"
#include "base/error.h"

namespace symmoe {

void DeviceLane::order(StreamHandle stream, const CaptureState& capture, const Device& device,
                       const Caller& caller) {
  if (capture.active && capture_ == capture.id) {
    if (captured_stream_ != stream) captured_.block(stream);
    return;
  }
  if (!recorded_.load() || stream_.load() == stream) return;
  if (!capture.active) {
    eager_.block(stream);
    return;
  }
  const RelaxedCapture relaxed(device);
  if (!eager_.done()) {
    throw InvalidArgument(caller.text() +
                          ": the lane's last call is still running on another stream, which a "
                          "captured graph cannot wait for; synchronize before the capture");
  }
}

void DeviceLane::note(StreamHandle stream, const CaptureState& capture) {
  if (capture.active) {
    captured_.record(stream);
    captured_stream_ = stream;
    capture_ = capture.id;
    return;
  }
  eager_.record(stream);
  stream_ = stream;
  recorded_ = true;
  since_ns_ = now_ns();
}

bool DeviceLane::done() const { return !recorded_.load() || eager_.done(); }

int64_t DeviceLane::pending_since_ns() {
  int64_t since = since_ns_.load();
  if (since == 0 || !eager_.done()) return since;
  since_ns_.compare_exchange_strong(since, 0);  // unless another call came in between
  return 0;
}

LaneCall::LaneCall(DeviceLane& lane, const Caller& caller) : lane_(lane) {
  if (lane.busy.test_and_set(std::memory_order_acquire)) {
    throw InvalidArgument(caller.text() + ": another thread is in a call of this lane");
  }
}

LaneCall::~LaneCall() {
  if (!kept_) lane_.busy.clear(std::memory_order_release);
}

}  // namespace symmoe
