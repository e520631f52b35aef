#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "backends/host/capture.h"
#include "backends/host/graph.h"
#include "backends/host/worker.h"
#include "runtime/device_table.h"

namespace symmoe::host {

// The streams, events and graphs of the process, and their captures. Handles are numbers that never
// come again, so one that is used after its end is noticed. Thread-safe; everything throws Refusal.
class Runtime {
 public:
  static Runtime& instance();

  StreamHandle create_stream();
  void destroy_stream(StreamHandle handle);
  // The work goes to the stream's thread or, while the stream is being captured, into the graph.
  void enqueue(StreamHandle handle, const std::shared_ptr<Work>& work);
  void synchronize(StreamHandle handle);
  void synchronize_all();
  bool idle(StreamHandle handle);

  EventHandle create_event();
  void destroy_event(EventHandle handle);
  void record(EventHandle handle, StreamHandle stream_handle);
  void wait(StreamHandle stream_handle, EventHandle handle);
  bool passed(EventHandle handle);

  CaptureState capture_state(StreamHandle handle);
  void begin_capture(StreamHandle handle, CaptureMode mode);
  void* end_capture(StreamHandle handle);
  void launch_graph(void* handle, StreamHandle stream_handle);
  void destroy_graph(void* handle);
  // For calls that are not the runtime's own, such as to allocate.
  void refuse_disturbance(const char* call);

 private:
  struct Stream {
    std::shared_ptr<Worker> worker = std::make_shared<Worker>();
    Part part;
    bool began = false;  // the capture began here
  };

  struct Event {
    std::shared_ptr<Point> point;  // null: nothing to wait for
    std::weak_ptr<Capture> capture;
    std::vector<size_t> nodes;
    bool captured = false;  // the last recording was in a capture, which may have ended
  };

  Runtime() = default;
  void* new_handle();
  Stream& stream_at(StreamHandle handle);
  Event& event_at(EventHandle handle);
  std::shared_ptr<Point> tail_of(StreamHandle handle, const char* call);
  void join_capture(Stream& stream, StreamHandle handle, const Event& event);

  std::mutex mutex_;
  std::uintptr_t last_handle_ = 0;
  std::unordered_map<StreamHandle, Stream> streams_;
  std::vector<std::shared_ptr<Point>> orphans_;  // what streams that are gone have left to do
  std::unordered_map<EventHandle, Event> events_;
  std::unordered_map<void*, std::shared_ptr<Graph>> graphs_;
  Captures captures_;
};

}  // namespace symmoe::host
