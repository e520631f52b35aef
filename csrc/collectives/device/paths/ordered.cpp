// The same bits as the CPU's: partial rows travel unreduced and one kernel adds them in rank order.
#include "collectives/device/paths/paths.h"

namespace symmoe {

std::string OrderedPath::refusal(const Problem& problem, const Resources& resources) const {
  if (problem.kind != Plan::Kind::kReduceScatter) return "there is nothing to add";
  if (problem.device_sizes) return why_sizes_forbid(problem);
  if (!problem.form.deterministic) {
    return "it moves each row unreduced and adds it in a second step; only for deterministic=True";
  }
  return resources.no_communicator;
}

size_t OrderedPath::scratch_bytes(const Problem& problem) const {
  return problem.bytes * static_cast<size_t>(problem.world);
}

void OrderedPath::run(const Transfer& transfer) const {
  const Plan& plan = transfer.plan;
  Communicator& communicator = *transfer.resources.communicator;
  const auto own = static_cast<size_t>(plan.own_count() * plan.hidden);
  Communicator::Batch batch(communicator);
  for (int rank = 0; rank < communicator.world(); ++rank) {
    if (rank == plan.rank) continue;
    const auto index = static_cast<size_t>(rank);
    const auto theirs = static_cast<size_t>(plan.counts[index] * plan.hidden);
    if (theirs != 0) {
      communicator.send(transfer.send + plan.bytes_of(plan.begins[index]), theirs, plan.dtype, rank,
                        transfer.stream);
    }
    if (own != 0) {
      communicator.receive(transfer.scratch + index * plan.bytes_of(plan.own_count()), own,
                           plan.dtype, rank, transfer.stream);
    }
  }
  batch.end();
  if (own == 0) return;
  transfer.device.rank_reduce({.own = transfer.send + plan.bytes_of(plan.own_begin()),
                               .gathered = transfer.scratch,
                               .output = transfer.receive,
                               .count = static_cast<int64_t>(own),
                               .stride = static_cast<int64_t>(own),
                               .ranks = communicator.world(),
                               .own_rank = plan.rank,
                               .type = plan.dtype},
                              transfer.stream);
}

}  // namespace symmoe
