#include "runtime/stream.h"

#include <utility>

#include "base/error.h"

namespace symmoe {

Stream::Stream(std::shared_ptr<Device> device) : device_(std::move(device)) {
  const CurrentDevice current(*device_);
  device_->require(device_->table().stream_create(&handle_), "creation of a stream");
}

Stream::~Stream() {
  if (handle_ == nullptr || !device_->usable()) return;
  device_->table().stream_destroy(handle_);
}

Stream::Stream(Stream&& other) noexcept
    : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}

void Stream::synchronize() const { device_->synchronize(handle_); }

Event::Event(std::shared_ptr<Device> device) : device_(std::move(device)) {
  const CurrentDevice current(*device_);
  device_->require(device_->table().event_create(&handle_), "creation of an event");
}

Event::~Event() {
  if (handle_ == nullptr || !device_->usable()) return;
  device_->table().event_destroy(handle_);
}

Event::Event(Event&& other) noexcept
    : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}

void Event::record(StreamHandle stream) {
  const CurrentDevice current(*device_);
  device_->require(device_->table().event_record(handle_, stream), "recording of an event");
}

void Event::block(StreamHandle stream) const {
  const CurrentDevice current(*device_);
  device_->require(device_->table().stream_wait(stream, handle_), "wait of a stream for an event");
}

bool Event::done() const {
  const CurrentDevice current(*device_);
  const int status = device_->table().event_query(handle_);
  if (status == kDeviceNotReady) return false;
  device_->require(status, "query of an event");
  return true;
}

RelaxedCapture::RelaxedCapture(const Device& device) : device_(device) {
  device.require(device.table().exchange_capture_mode(&previous_), "choice of the capture mode");
}

RelaxedCapture::~RelaxedCapture() { device_.table().exchange_capture_mode(&previous_); }

}  // namespace symmoe
