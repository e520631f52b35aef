// Rows that have to be elsewhere before a path can send them.
#include <algorithm>
#include <utility>

#include "collectives/device/call_source.h"

namespace symmoe {

bool DeviceEngine::must_stage(const DevicePath& path, const Source& source,
                              bool rows_missing) const {
  if (rows_missing) return true;
  if (!path.sends_from_window()) return false;
  const bool own = (bit_of(path.kind()) & kOwnKernels) != 0;
  return source.buffer == nullptr || (own && source.offset % kPeerAlignment != 0);
}

// In the window that a rank with its rows in the pool sends from, since NCCL wants all ranks to
// send from the same. But not if this rank's rows for another call may be in there, or if what is
// left out has to become zeros: then all ranks come here. For paths that send from no window, into
// memory of this rank's own.
std::shared_ptr<Buffer> DeviceEngine::staging_for(const Plan& plan, const DevicePath& path,
                                                  bool rows_missing, const CaptureState& capture) {
  const size_t bytes = std::max(plan.input_bytes(), size_t{1});
  Slot slot{plan.role, plan.lane, Use::kAcquired};
  if (!path.sends_from_window()) return scratch_for(plan, bytes, capture, slot.use);
  const auto current = pool_.current(slot);
  const bool armed = current != nullptr && current->armed.load(std::memory_order_relaxed);
  if (armed || rows_missing) slot.use = Use::kStage;
  return buffer_for(slot, bytes, capture, plan.operation());
}

void DeviceEngine::stage(const Plan& plan, const Source& source, std::byte* to, bool rows_missing,
                         const DeviceCall& call) {
  const Device& device = *parts_.device;
  if (!rows_missing) {
    device.copy_to_window({.source = source.send,
                           .destination = to,
                           .bytes = static_cast<int64_t>(plan.input_bytes())},
                          call.stream);
    return;
  }
  // Whole rows are there or not, whatever their slots were.
  kernels::RoutingView view = view_of(call, mask_of(plan, call));
  view.ids = nullptr;
  device.fill(to, 0, plan.input_bytes(), call.stream);
  device.topk_reduce({.input = source.send,
                      .output = to,
                      .fault = faults_.record(),
                      .tokens = plan.rows,
                      .slots = 1,
                      .hidden = plan.hidden,
                      .input_type = plan.dtype,
                      .output_type = plan.dtype,
                      .routing = view},
                     call.stream);
}

// The call's mask, made now unless an earlier call of this stream has made it.
RouteMask DeviceEngine::mask_of(const Plan& plan, const DeviceCall& call) {
  kernels::RouteMaskLaunch launch = call.routing->view;
  launch.fault = faults_.record();
  launch.world = world_;
  if (plan.has_padding()) {
    launch.shares = shares_of(plan, call.sizes, call.output_rows);
  } else {  // then it does not matter whose they are, and any sizes have the same mask
    launch.shares.counts[0] = plan.rows;
  }
  return call.routing->mask(*parts_.device, launch);
}

// What a sum has to know of the call's routing: with a mask it leaves out what others hold, without
// one it makes zeros of that.
kernels::RoutingView DeviceEngine::view_of(const DeviceCall& call, const RouteMask& route) const {
  const kernels::RouteMaskLaunch& view = call.routing->view;
  return {.ids = call.summed ? nullptr : view.ids,
          .expert_to_rank = view.expert_to_rank,
          .mask = route.mask,
          .experts = view.experts,
          .rank = rank_,
          .ids_are_64bit = view.ids_are_64bit};
}

}  // namespace symmoe
