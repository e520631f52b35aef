#include "backends/host/runtime.h"

#include <utility>

#include "backends/host/refusal.h"

namespace symmoe::host {

// Never destroyed: streams may still run while the process ends.
Runtime& Runtime::instance() {
  static Runtime* const runtime = [] {
    auto* made = new Runtime;
    made->streams_[nullptr];  // the default stream
    return made;
  }();
  return *runtime;
}

void* Runtime::new_handle() {
  constexpr std::uintptr_t kSpacing = 64;  // far from the small numbers of a vendor's own streams
  last_handle_ += kSpacing;
  return reinterpret_cast<void*>(last_handle_);
}

Runtime::Stream& Runtime::stream_at(StreamHandle handle) {
  const auto found = streams_.find(handle);
  if (found == streams_.end()) throw Refusal{kInvalidHandle, "no such stream"};
  return found->second;
}

Runtime::Event& Runtime::event_at(EventHandle handle) {
  const auto found = events_.find(handle);
  if (found == events_.end()) throw Refusal{kInvalidHandle, "no such event"};
  return found->second;
}

StreamHandle Runtime::create_stream() {
  const std::lock_guard lock(mutex_);
  void* handle = new_handle();
  streams_[handle];
  return handle;
}

void Runtime::destroy_stream(StreamHandle handle) {
  const std::lock_guard lock(mutex_);
  Stream& stream = stream_at(handle);
  if (handle == nullptr) throw Refusal{kInvalidHandle, "the default stream stays"};
  if (stream.part.capture) {
    throw stream.part.capture->break_off("one of its streams was destroyed");
  }
  std::erase_if(orphans_, [](const auto& point) { return point->reached(); });
  if (auto tail = stream.worker->tail()) orphans_.push_back(std::move(tail));
  stream.worker->close();
  streams_.erase(handle);
}

void Runtime::enqueue(StreamHandle handle, const std::shared_ptr<Work>& work) {
  const std::lock_guard lock(mutex_);
  Stream& stream = stream_at(handle);
  if (!stream.part.capture) {
    stream.worker->push({.wait_for = nullptr, .work = work, .reach = nullptr});
    return;
  }
  if (!stream.part.capture->broken.empty()) throw stream.part.capture->refusal();
  stream.part.add(work);
}

// Where the stream's work ends now, for calls that ask for it from outside of the stream.
std::shared_ptr<Point> Runtime::tail_of(StreamHandle handle, const char* call) {
  const std::lock_guard lock(mutex_);
  Stream& stream = stream_at(handle);
  if (stream.part.capture) {
    throw stream.part.capture->break_off(std::string(call) + " of a stream that is being captured");
  }
  captures_.refuse_disturbance(call);
  return stream.worker->tail();
}

void Runtime::synchronize(StreamHandle handle) {
  if (const auto tail = tail_of(handle, "stream_synchronize")) tail->wait();
}

bool Runtime::idle(StreamHandle handle) {
  const auto tail = tail_of(handle, "stream_query");
  return !tail || tail->reached();
}

void Runtime::synchronize_all() {
  std::vector<std::shared_ptr<Point>> tails;
  {
    const std::lock_guard lock(mutex_);
    captures_.refuse_disturbance("synchronize");
    tails = orphans_;
    for (const auto& [handle, stream] : streams_) tails.push_back(stream.worker->tail());
  }
  for (const std::shared_ptr<Point>& tail : tails) {
    if (tail) tail->wait();
  }
}

EventHandle Runtime::create_event() {
  const std::lock_guard lock(mutex_);
  void* handle = new_handle();
  events_[handle];
  return handle;
}

void Runtime::destroy_event(EventHandle handle) {
  const std::lock_guard lock(mutex_);
  event_at(handle);
  events_.erase(handle);
}

void Runtime::record(EventHandle handle, StreamHandle stream_handle) {
  const std::lock_guard lock(mutex_);
  Event& event = event_at(handle);
  Stream& stream = stream_at(stream_handle);
  const Part& part = stream.part;
  if (part.capture && !part.capture->broken.empty()) throw part.capture->refusal();
  event.point = part.capture ? nullptr : stream.worker->tail();
  event.captured = part.capture != nullptr;
  event.capture = part.capture;
  event.nodes = part.ends;
}

void Runtime::wait(StreamHandle stream_handle, EventHandle handle) {
  const std::lock_guard lock(mutex_);
  Stream& stream = stream_at(stream_handle);
  const Event& event = event_at(handle);
  if (event.captured) {
    join_capture(stream, stream_handle, event);
  } else if (stream.part.capture) {
    throw stream.part.capture->break_off("wait for an event that was recorded outside of it");
  } else if (event.point) {
    stream.worker->push({.wait_for = event.point, .work = nullptr, .reach = nullptr});
  }
}

// The stream waits for what another one did in a capture, and so takes part in it from now on.
void Runtime::join_capture(Stream& stream, StreamHandle handle, const Event& event) {
  const std::shared_ptr<Capture> capture = event.capture.lock();
  Part& part = stream.part;
  if (!capture) {
    const std::string reason = "wait for an event of a capture that has ended";
    if (part.capture) throw part.capture->break_off(reason);
    throw Refusal{kDeviceInvalidCapture, reason};
  }
  if (handle == nullptr) throw capture->break_off("the default stream cannot be captured");
  if (part.capture && part.capture != capture) {
    part.capture->break_off("wait for an event of another capture");
    throw capture->break_off("a stream of another capture waits for its event");
  }
  if (!capture->broken.empty()) throw capture->refusal();
  if (!part.capture) {
    part.capture = capture;
    part.lane = capture->lanes++;
  }
  part.wait_for(event.nodes);
}

bool Runtime::passed(EventHandle handle) {
  const std::lock_guard lock(mutex_);
  const Event& event = event_at(handle);
  if (event.captured) {
    const Refusal refusal{kDeviceInvalidCapture,
                          "query of an event that was recorded in a capture"};
    if (const auto capture = event.capture.lock()) throw capture->break_off(refusal.text);
    throw refusal;
  }
  captures_.refuse_disturbance("event_query");
  return !event.point || event.point->reached();
}

CaptureState Runtime::capture_state(StreamHandle handle) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Capture>& capture = stream_at(handle).part.capture;
  if (!capture) return {false, 0};
  if (!capture->broken.empty()) throw capture->refusal();
  return {true, capture->id};
}

void Runtime::begin_capture(StreamHandle handle, CaptureMode mode) {
  const std::lock_guard lock(mutex_);
  Stream& stream = stream_at(handle);
  if (handle == nullptr) {
    throw Refusal{kDeviceInvalidCapture, "the default stream cannot be captured"};
  }
  if (stream.part.capture) {
    throw stream.part.capture->break_off("a capture began in a stream that is being captured");
  }
  stream.part.capture = captures_.begin(mode);
  stream.part.lane = stream.part.capture->lanes++;
  stream.began = true;
}

void* Runtime::end_capture(StreamHandle handle) {
  std::shared_ptr<Capture> capture;  // released after the lock: its work may call us back
  const std::lock_guard lock(mutex_);
  Stream& stream = stream_at(handle);
  capture = stream.part.capture;
  if (!capture) throw Refusal{kDeviceInvalidCapture, "end of a capture that has not begun"};
  if (!stream.began)
    throw capture->break_off("end of a capture in a stream where it did not begin");
  if (capture->mode != kCaptureRelaxed && capture->thread != std::this_thread::get_id()) {
    throw capture->break_off("end of a capture in a thread that did not begin it");
  }

  const std::vector<size_t> ends = std::move(stream.part.ends);
  for (auto& [other_handle, other] : streams_) {
    if (other.part.capture != capture) continue;
    other.part = {};
    other.began = false;
  }
  captures_.end(*capture);
  if (!capture->broken.empty()) throw capture->refusal();
  if (!all_lead_to(capture->nodes, ends)) {
    throw capture->break_off("end of a capture with work in a stream that did not join again");
  }
  void* graph = new_handle();
  graphs_[graph] = std::make_shared<Graph>(std::move(capture->nodes), capture->lanes, ends);
  return graph;
}

void Runtime::launch_graph(void* handle, StreamHandle stream_handle) {
  const std::lock_guard lock(mutex_);
  const auto found = graphs_.find(handle);
  if (found == graphs_.end()) throw Refusal{kInvalidHandle, "no such graph"};
  Stream& stream = stream_at(stream_handle);
  if (stream.part.capture) {
    throw stream.part.capture->break_off("launch of a graph: graphs in graphs are not supported");
  }
  found->second->launch(*stream.worker);
}

void Runtime::destroy_graph(void* handle) {
  std::shared_ptr<Graph> graph;  // released after the lock: its work may call us back
  const std::lock_guard lock(mutex_);
  const auto found = graphs_.find(handle);
  if (found == graphs_.end()) throw Refusal{kInvalidHandle, "no such graph"};
  graph = std::move(found->second);
  graphs_.erase(found);
}

void Runtime::refuse_disturbance(const char* call) {
  const std::lock_guard lock(mutex_);
  captures_.refuse_disturbance(call);
}

}  // namespace symmoe::host
