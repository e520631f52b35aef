// What a rank does to its own rows behind their sum, where the path that sums does not do it.
#include <algorithm>
#include <string>

#include "collectives/device/device_engine.h"

namespace symmoe {

// Bytes of an element of the output.
size_t DeviceEngine::output_size(const Plan& plan, const DeviceCall& call) {
  return call.epilogue == nullptr ? size_of(plan.dtype) : call.epilogue->output_size(plan.dtype);
}

void DeviceEngine::require_epilogue(const Plan& plan, const DeviceCall& call) const {
  const auto refuse_call = [&](const std::string& what) {
    throw InvalidArgument(at(plan.operation()) + ": " + what + " (" + plan.text + ")");
  };
  if (plan.kind != Plan::Kind::kReduceScatter) refuse_call("only sums have an epilogue");
  const int64_t rows = plan.own_count();
  symmoe::require_epilogue(by(plan.operation()), *call.epilogue, plan.dtype, rows, plan.hidden);
  if (plan.output_bytes() > 0 && call.sums_or_output() == nullptr) {
    refuse_call("a quantised output has no memory for its sums");
  }
}

void DeviceEngine::finish(const Plan& rows, const DeviceCall& call) const {
  kernels::EpilogueLaunch launch{.input = call.sums_or_output(),
                                 .output = call.output,
                                 .steps = *call.epilogue,
                                 .rows = rows.own_count(),
                                 .hidden = rows.hidden,
                                 .type = rows.dtype,
                                 .rank = rank_,
                                 .world = world_};
  if (rows.device_sizes) {
    launch.rows = std::min(launch.rows, call.output_rows);
    launch.shares = shares_of(rows, call.sizes, call.output_rows);
  }
  parts_.device->apply_epilogue(launch, call.stream);
}

void DeviceEngine::finish(const DevicePlan& plan, const DeviceCall& call) {
  require_usable(plan.plan.operation());
  require_fit(plan.plan, call);
  guarded([&] { finish(plan.plan, call); });
}

}  // namespace symmoe
