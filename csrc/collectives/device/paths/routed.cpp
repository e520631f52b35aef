// pull, but only from the ranks that hold one of a row's experts: a bit mask per row says which.
// The others need not have written the row.
#include "collectives/device/paths/paths.h"

namespace symmoe {

std::string RoutedPath::refusal(const Problem& problem, const Resources& resources) const {
  if (!problem.form.routed) return "the call has no routing";
  return why_no_own_kernel(problem, resources);
}

void RoutedPath::run(const Transfer& transfer) const { pull_rows(transfer); }

}  // namespace symmoe
