// Ordinary NCCL. From pool memory this needs a communicator that does not know the windows: with
// the one that does, NCCL would take its symmetric kernel.
#include "collectives/device/paths/paths.h"

namespace symmoe {
namespace {

Communicator* communicator_for(const Problem& problem, const Resources& resources) {
  const bool reducing = problem.kind == Plan::Kind::kReduceScatter;
  const bool in_window = resources.nccl_windows && resources.no_windows.empty();
  if (reducing && in_window) return resources.plain;
  return resources.communicator;
}

}  // namespace

std::string PlainPath::refusal(const Problem& problem, const Resources& resources) const {
  if (problem.device_sizes) return why_sizes_forbid(problem);
  if (problem.form.deterministic) return "NCCL's kernels choose their own order of addition";
  if (!problem.even) return "NCCL's collectives want equally many rows of every rank";
  if (!resources.no_communicator.empty()) return resources.no_communicator;
  if (communicator_for(problem, resources) == nullptr) {
    return "it needs a second communicator, which is made if the tuning table wants it";
  }
  return "";
}

void PlainPath::run(const Transfer& transfer) const {
  const Plan& plan = transfer.plan;
  const auto count = static_cast<size_t>(plan.own_count() * plan.hidden);
  if (plan.kind == Plan::Kind::kAllGather) {
    transfer.resources.communicator->all_gather(transfer.send, transfer.receive, count, plan.dtype,
                                                transfer.stream);
    return;
  }
  Communicator* const plain = transfer.resources.plain;
  Communicator& communicator = plain != nullptr ? *plain : *transfer.resources.communicator;
  communicator.reduce_scatter(transfer.send, transfer.receive, count, plan.dtype, transfer.stream);
}

}  // namespace symmoe
