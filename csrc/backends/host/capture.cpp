#include "backends/host/capture.h"

#include <algorithm>
#include <utility>

namespace symmoe::host {
namespace {

CaptureMode& mode_of_thread() {
  thread_local CaptureMode mode = kCaptureGlobal;
  return mode;
}

}  // namespace

Refusal Capture::refusal() const {
  return {kDeviceInvalidCapture, "the capture was broken before: " + broken};
}

Refusal Capture::break_off(const std::string& reason) {
  if (broken.empty()) broken = reason;
  return {kDeviceInvalidCapture, reason};
}

void Part::add(std::shared_ptr<Work> work) {
  capture->nodes.push_back({std::move(work), lane, std::move(ends)});
  ends = {capture->nodes.size() - 1};
}

void Part::wait_for(const std::vector<size_t>& nodes) {
  for (const size_t node : nodes) {
    if (std::find(ends.begin(), ends.end(), node) == ends.end()) ends.push_back(node);
  }
}

CaptureMode Captures::exchange_mode(CaptureMode mode) {
  return std::exchange(mode_of_thread(), mode);
}

std::shared_ptr<Capture> Captures::begin(CaptureMode mode) {
  const auto capture = std::make_shared<Capture>();
  capture->id = ++last_id_;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  active_.push_back(capture);
  return capture;
}

void Captures::end(const Capture& capture) {
  std::erase_if(active_, [&](const auto& other) { return other.get() == &capture; });
}

// A thread in global mode respects all captures that began in global mode; whatever its mode,
// unless it is relaxed, it respects those that it began itself, but for relaxed ones.
void Captures::refuse_disturbance(const char* call) {
  const CaptureMode own_mode = mode_of_thread();
  if (own_mode == kCaptureRelaxed) return;
  bool refused = false;
  for (const std::shared_ptr<Capture>& capture : active_) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool respected = own ? capture->mode != kCaptureRelaxed
                               : capture->mode == kCaptureGlobal && own_mode == kCaptureGlobal;
    if (!respected) continue;
    capture->break_off(std::string(call) + " was called during it");
    refused = true;
  }
  if (refused) {
    throw Refusal{kDeviceInvalidCapture,
                  std::string(call) + " is not allowed while a stream is being captured"};
  }
}

}  // namespace symmoe::host
