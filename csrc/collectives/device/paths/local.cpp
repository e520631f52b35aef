#include "collectives/device/paths/paths.h"

namespace symmoe {

std::string why_sizes_forbid(const Problem& problem) {
  if (!problem.device_sizes) return "";
  return "the sizes are on the device, and only own kernels read them there";
}

std::string LocalPath::refusal(const Problem& problem, const Resources&) const {
  if (problem.total_bytes == 0) return "";
  if (problem.device_sizes) return why_sizes_forbid(problem);
  if (problem.form.routed && !problem.form.from_sum) {
    return "rows that nobody wrote are not to be copied";
  }
  if (problem.world == 1) return "";
  return "there are " + std::to_string(problem.world) + " ranks";
}

void LocalPath::run(const Transfer& transfer) const {
  const Plan& plan = transfer.plan;
  const size_t bytes = plan.bytes_of(plan.own_count());
  if (bytes == 0) return;
  const bool reducing = plan.kind == Plan::Kind::kReduceScatter;
  const size_t begin = plan.bytes_of(plan.own_begin());
  const std::byte* const from = transfer.send + (reducing ? begin : 0);
  std::byte* const to = transfer.receive + (reducing ? 0 : begin);
  if (from != to) transfer.device.copy(to, from, bytes, transfer.stream);
}

}  // namespace symmoe
