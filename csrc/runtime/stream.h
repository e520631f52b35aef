#pragma once

#include <memory>

#include "runtime/device.h"

namespace symmoe {

// A stream of its own, which does not wait for the default stream. Borrowed ones (torch's) are bare
// handles. Destroying it does not wait for its work.
class Stream {
 public:
  explicit Stream(std::shared_ptr<Device> device);
  ~Stream();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamHandle handle() const { return handle_; }
  void synchronize() const;

 private:
  std::shared_ptr<Device> device_;
  StreamHandle handle_ = nullptr;
};

// A point in a stream's work.
class Event {
 public:
  explicit Event(std::shared_ptr<Device> device);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  EventHandle handle() const { return handle_; }

  // The point is now behind all that `stream` has been given so far.
  void record(StreamHandle stream);

  // What `stream` is given from now on waits for the point.
  void block(StreamHandle stream) const;

  // Whether the device has passed the point; true for an event that was never recorded. Throws
  // DeviceError for an event that was recorded in a capture: it belongs to the graph.
  bool done() const;

 private:
  std::shared_ptr<Device> device_;
  EventHandle handle_ = nullptr;
};

// While it lives, the calling thread may make calls that would otherwise disturb a capture in
// whatever stream, such as to allocate, release and query. They do not become part of the graph.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Device& device);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Device& device_;
  CaptureMode previous_ = kCaptureRelaxed;
};

}  // namespace symmoe
