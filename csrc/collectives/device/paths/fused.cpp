// combine in one kernel: each block sums its part of every rank's rows into the window, meets the
// same block of all peers, and pulls what those have summed for it. One launch less, but fewer
// blocks for the sum: for small messages.
#include "collectives/device/paths/paths.h"

namespace symmoe {

std::string FusedPath::refusal(const Problem& problem, const Resources& resources) const {
  if (!problem.form.from_sum) return "only combine makes the rows itself";
  return why_no_own_kernel(problem, resources);
}

void FusedPath::run(const Transfer& transfer) const {
  kernels::CombineLaunch launch{.sum = *transfer.peers->sum, .pull = transfer.peers->pull};
  launch.pull.output = transfer.receive;
  transfer.device.combine(launch, transfer.stream);
}

}  // namespace symmoe
