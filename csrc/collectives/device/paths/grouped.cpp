// NCCL has no reduce-scatter or all-gather of uneven parts: one reduce to each rank, or one
// broadcast from each, all started together.
#include "collectives/device/paths/paths.h"

namespace symmoe {

std::string GroupedPath::refusal(const Problem& problem, const Resources& resources) const {
  if (problem.device_sizes) return why_sizes_forbid(problem);
  if (problem.form.deterministic) return "NCCL's kernels choose their own order of addition";
  if (problem.even) return "every rank has equally many rows";
  return resources.no_communicator;
}

void GroupedPath::run(const Transfer& transfer) const {
  const Plan& plan = transfer.plan;
  Communicator& communicator = *transfer.resources.communicator;
  const bool reducing = plan.kind == Plan::Kind::kReduceScatter;
  Communicator::Batch batch(communicator);
  for (int rank = 0; rank < communicator.world(); ++rank) {
    const auto index = static_cast<size_t>(rank);
    const auto count = static_cast<size_t>(plan.counts[index] * plan.hidden);
    if (count == 0) continue;
    const size_t begin = plan.bytes_of(plan.begins[index]);
    if (reducing) {
      communicator.reduce(transfer.send + begin, transfer.receive, count, plan.dtype, rank,
                          transfer.stream);
    } else {
      communicator.broadcast(transfer.send, transfer.receive + begin, count, plan.dtype, rank,
                             transfer.stream);
    }
  }
  batch.end();
}

}  // namespace symmoe
