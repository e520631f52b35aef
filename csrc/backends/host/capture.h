#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/host/graph.h"
#include "backends/host/refusal.h"
#include "runtime/device_table.h"

namespace symmoe::host {

// A capture that goes on. A stream takes part from begin_capture on, or from the moment when it
// waits for an event of a stream that does.
struct Capture {
  uint64_t id = 0;
  CaptureMode mode = kCaptureGlobal;
  std::thread::id thread;  // that began it
  std::string broken;      // why nothing will come of it; empty while all is well
  std::vector<Node> nodes;
  size_t lanes = 0;

  Refusal refusal() const;  // of a broken capture
  // Breaks the capture, unless it was broken before, and gives the refusal for the call.
  Refusal break_off(const std::string& reason);
};

// A stream's part in a capture.
struct Part {
  std::shared_ptr<Capture> capture;  // null: the stream is not being captured
  size_t lane = 0;
  std::vector<size_t> ends;  // nodes that whatever comes next has to wait for

  void add(std::shared_ptr<Work> work);
  void wait_for(const std::vector<size_t>& nodes);
};

// The captures that go on in the process, and whom they forbid what. Not thread-safe.
class Captures {
 public:
  // The calling thread's mode is `mode` from now on; returns what it was.
  static CaptureMode exchange_mode(CaptureMode mode);

  std::shared_ptr<Capture> begin(CaptureMode mode);
  void end(const Capture& capture);

  // For a call that would disturb a capture: throws Refusal, and breaks every capture for which
  // the calling thread may not make it now.
  void refuse_disturbance(const char* call);

 private:
  std::vector<std::shared_ptr<Capture>> active_;
  uint64_t last_id_ = 0;
};

}  // namespace symmoe::host
