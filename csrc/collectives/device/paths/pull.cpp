// One kernel of our own: it waits until all ranks' rows are in their windows, reads the own rows
// there, adds them in rank order, and waits until all have read. See docs/device_kernels.md.
#include "collectives/device/paths/paths.h"
#include "kernels/device/signal_page.h"

namespace symmoe {

std::string why_no_own_kernel(const Problem& problem, const Resources& resources) {
  if (problem.kind != Plan::Kind::kReduceScatter) {
    return "own kernels add rows; all_gather has nothing to add";
  }
  if (problem.world > kernels::kMaxPeers) {
    return std::to_string(problem.world) + " ranks, and own kernels serve at most " +
           std::to_string(kernels::kMaxPeers);
  }
  if (!resources.no_windows.empty()) return resources.no_windows;
  return resources.no_peers;
}

std::string PullPath::refusal(const Problem& problem, const Resources& resources) const {
  return why_no_own_kernel(problem, resources);
}

void pull_rows(const Transfer& transfer) {
  kernels::PullLaunch launch = transfer.peers->pull;
  launch.output = transfer.receive;
  if (transfer.epilogue == nullptr) {
    transfer.device.pull_reduce(launch, transfer.stream);
  } else {
    transfer.device.pull_epilogue({.pull = launch, .steps = *transfer.epilogue}, transfer.stream);
  }
}

void PullPath::run(const Transfer& transfer) const { pull_rows(transfer); }

}  // namespace symmoe
