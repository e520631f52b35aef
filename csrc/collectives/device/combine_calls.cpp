// combine: the top-k sum into the lane's window and the collective behind it, in one launch or
// more.
#include <algorithm>
#include <utility>

#include "collectives/device/call_source.h"
#include "kernels/device/signal_page.h"

namespace symmoe {

CallForm DeviceEngine::form_of(const DeviceCall& call, const Source& source) {
  return {
      .deterministic = call.deterministic,
      .from_sum = source.from_sum,
      .routed = call.routing != nullptr,
      .slots = call.routing != nullptr ? static_cast<int>(call.routing->view.slots) : source.slots};
}

bool DeviceEngine::combine(const DevicePlan& plan, kernels::TopkReduceLaunch sum,
                           const DeviceCall& call) {
  const Plan& rows = plan.plan;
  const char* const operation = "combine";
  require_usable(operation);
  require_no_faults(operation);
  auto window = require_fit(rows, call);
  DeviceLane& here = lane(rows.role, rows.lane, operation);
  const LaneCall taken(here, by(operation));
  const Output output(*this, rows, std::move(window));
  sum.fault = faults_.record();

  Source source{.from_sum = true, .slots = static_cast<int>(sum.slots)};
  const CallForm form = form_of(call, source);
  require_path(plan, form, path_for(plan, form));
  if (path_for(plan, form) == nullptr || !resources_.no_windows.empty() ||
      pool_.refuses(rows.input_bytes())) {
    return false;
  }
  return guarded([&] {
    const Device& device = *parts_.device;
    const CaptureState capture = device.capture_state(call.stream);
    output.wait_in(call.stream, capture);  // a capture may refuse that: before the sum
    source.buffer =
        writable_window({rows.role, rows.lane, Use::kAcquired},
                        std::max(rows.input_bytes(), size_t{1}), capture, call.stream, operation);
    if (source.buffer == nullptr) return false;
    sum.output = source.buffer->window.base;
    source.send = source.buffer->window.base;
    require_memory(by(operation), sum);
    require_aligned(by(operation), sum);
    require_apart(by(operation), sum, rows.input_bytes());

    const DevicePath* const path = path_for(plan, form);
    const bool by_mask = path != nullptr && takes_routing(path->kind());
    if (call.routing != nullptr) {
      // Rows that the experts have summed are there or not as a whole, and only a mask tells.
      const bool as_mask = by_mask || call.summed;
      if (as_mask) source.route = mask_of(rows, call);
      sum.routing = view_of(call, source.route);
      if (as_mask && !by_mask) device.fill(sum.output, 0, rows.input_bytes(), call.stream);
    }
    if (path != nullptr && path->kind() == PathKind::kFused) {
      source.sum = &sum;
    } else {
      leave_out_padding(rows, call, sum);
      if (sum.tokens > 0) device.topk_reduce(sum, call.stream);
      here.note(call.stream, capture);
    }
    return queue(plan, source, call, output);
  });
}

// What belongs to rows of no rank (ids, an index, rows of experts) may hold anything.
void DeviceEngine::leave_out_padding(const Plan& plan, const DeviceCall& call,
                                     kernels::TopkReduceLaunch& sum) const {
  if (!plan.has_padding() || world_ > kernels::kMaxPeers) return;
  sum.shares = shares_of(plan, call.sizes, call.output_rows);
  sum.ranks = world_;
}

std::unique_ptr<DeviceRouting> DeviceEngine::make_routing(
    const kernels::RouteMaskLaunch& view) const {
  if (world_ > kernels::kMaxPeers) {  // whatever the path: what a rank holds is a bit of 64
    throw InvalidArgument(at("combine") + ": a routing serves at most " +
                          std::to_string(kernels::kMaxPeers) + " ranks, not " +
                          std::to_string(world_));
  }
  auto routing = std::make_unique<DeviceRouting>(hashes_);
  routing->view = view;
  return routing;
}

bool DeviceEngine::needs_memory(const DeviceRouting& routing, StreamHandle stream) const {
  return routing.needs_memory(stream, parts_.device->capture_state(stream));
}

void DeviceEngine::give(DeviceRouting& routing, uint64_t* memory, StreamHandle stream) const {
  routing.give(memory, stream, parts_.device->capture_state(stream));
}

}  // namespace symmoe
