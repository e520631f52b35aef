// Outputs that lie in a window: which may, and what the window's lane is told of it.
#include <string>
#include <utility>

#include "collectives/device/call_source.h"
#include "pool/outputs.h"

namespace symmoe {

std::string DeviceEngine::why_no_output(const void* output, size_t bytes, int lane) const {
  if (bytes == 0 || !overlaps(output, bytes)) return "";
  size_t offset = 0;
  const auto window = find(output, &offset);
  return symmoe::why_no_output(window.get(), offset, bytes, lane);
}

// The window that `output` lies in; null where it is the caller's memory. Throws InvalidArgument
// where it must be neither.
std::shared_ptr<Buffer> DeviceEngine::output_window(const char* operation, int lane,
                                                    const void* output, size_t bytes,
                                                    const std::string& text) const {
  if (bytes == 0 || !overlaps(output, bytes)) return nullptr;
  const std::string reason = why_no_output(output, bytes, lane);
  if (!reason.empty()) throw InvalidArgument(at(operation) + ": out " + reason + " (" + text + ")");
  size_t offset = 0;
  return find(output, &offset);
}

// Its lane is taken, so that the answer holds.
void DeviceEngine::require_writable(const char* operation, const Buffer& window,
                                    const std::string& text) const {
  const std::string reason = why_not_now(window);
  if (!reason.empty()) throw InvalidArgument(at(operation) + ": out " + reason + " (" + text + ")");
}

DeviceEngine::Output::Output(DeviceEngine& engine, const Plan& plan, std::shared_ptr<Buffer> window)
    : engine_(engine), window_(std::move(window)), kind_(plan.kind) {
  if (window_ == nullptr) return;
  const char* const operation = plan.operation();
  if (plan.role != window_->slot.role) {
    lane_ = &engine_.lane(window_->slot.role, window_->slot.lane, operation);
    taken_.emplace(*lane_, engine_.by(operation));
  }
  engine_.require_writable(operation, *window_, plan.text);
}

void DeviceEngine::Output::wait_in(StreamHandle stream, const CaptureState& capture) const {
  if (lane_ != nullptr) {
    lane_->order(stream, capture, *engine_.parts_.device, engine_.by(Plan::name_of(kind_)));
  }
  if (window_ != nullptr && capture.active) window_->pinned = true;
}

void DeviceEngine::Output::used_in(StreamHandle stream, const CaptureState& capture) const {
  if (lane_ != nullptr) lane_->note(stream, capture);
}

void DeviceEngine::Output::use_up() const {
  if (window_ == nullptr || kind_ != Plan::Kind::kAllGather) return;
  window_->armed.store(false, std::memory_order_relaxed);
}

// --- calls that somebody else serves -------------------------------------------------------------

namespace {

std::string words_of(const OutsideCall& call) {
  return std::to_string(call.output_bytes) + " bytes, by torch.distributed";
}

}  // namespace

void DeviceEngine::begin_outside(const OutsideCall& call) {
  const char* const operation = Plan::name_of(call.kind);
  require_usable(operation);
  require_no_faults(operation);
  size_t offset = 0;
  const auto output =
      output_window(operation, call.lane, call.output, call.output_bytes, words_of(call));
  const auto input = find(call.input, &offset);
  if (output == nullptr && input == nullptr) return;
  const CaptureState capture = parts_.device->capture_state(call.stream);
  for (Buffer* const used : {output.get(), input == output ? nullptr : input.get()}) {
    if (used == nullptr) continue;
    DeviceLane& here = lane(used->slot.role, used->slot.lane, operation);
    const LaneCall taken(here, by(operation));
    if (used == output.get()) require_writable(operation, *used, words_of(call));
    guarded([&] { here.order(call.stream, capture, *parts_.device, by(operation)); });
    if (capture.active) used->pinned = true;
  }
}

void DeviceEngine::end_outside(const OutsideCall& call) {
  const char* const operation = Plan::name_of(call.kind);
  size_t offset = 0;
  const auto output = call.output_bytes == 0 ? nullptr : find(call.output, &offset);
  const auto input = find(call.input, &offset);
  for (Buffer* const used : {output.get(), input == output ? nullptr : input.get()}) {
    if (used == nullptr) continue;
    DeviceLane& here = lane(used->slot.role, used->slot.lane, operation);
    const LaneCall taken(here, by(operation));
    guarded([&] { here.note(call.stream, parts_.device->capture_state(call.stream)); });
  }
  if (output != nullptr && call.kind == Plan::Kind::kAllGather) {
    output->armed.store(false, std::memory_order_relaxed);
  }
}

}  // namespace symmoe
