// NCCL picks a symmetric kernel by itself when the send pointer lies in a window of its
// communicator; the receive buffer may then be any memory (since NCCL 2.29.2). Those kernels end
// with a barrier of all ranks, so the window may be rewritten behind them in stream order.
#include "collectives/device/paths/paths.h"

namespace symmoe {

std::string DirectPath::refusal(const Problem& problem, const Resources& resources) const {
  if (problem.kind != Plan::Kind::kReduceScatter) return "only reduce_scatter reads windows";
  if (problem.device_sizes) return why_sizes_forbid(problem);
  if (problem.form.deterministic) return "NCCL's kernels choose their own order of addition";
  if (!problem.even) return "NCCL's reduce-scatter wants equally many rows of every rank";
  if (!resources.no_communicator.empty()) return resources.no_communicator;
  if (!resources.no_windows.empty()) return resources.no_windows;
  return resources.no_direct;
}

void DirectPath::run(const Transfer& transfer) const {
  const Plan& plan = transfer.plan;
  const auto count = static_cast<size_t>(plan.own_count() * plan.hidden);
  transfer.resources.communicator->reduce_scatter(transfer.send, transfer.receive, count,
                                                  plan.dtype, transfer.stream);
}

}  // namespace symmoe
