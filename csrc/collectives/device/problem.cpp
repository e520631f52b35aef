#include "collectives/device/problem.h"

#include <algorithm>

namespace symmoe {

Problem problem_of(const Plan& plan, const CallForm& form) {
  const auto world = static_cast<int64_t>(plan.counts.size());
  int64_t most = *std::max_element(plan.counts.begin(), plan.counts.end());
  bool even = !plan.device_sizes && plan.rows == most * world;
  for (size_t rank = 0; rank < plan.counts.size(); ++rank) {
    even = even && plan.counts[rank] == most && plan.begins[rank] == most * int64_t(rank);
  }
  // What is reserved says little about what comes; an equal share of it is a fair guess.
  if (plan.device_sizes) most = (plan.rows + world - 1) / world;
  return {.kind = plan.kind,
          .dtype = plan.dtype,
          .world = static_cast<int>(world),
          .bytes = plan.bytes_of(most),
          .total_bytes = plan.bytes_of(plan.rows),
          .even = even,
          .device_sizes = plan.device_sizes,
          .form = form};
}

}  // namespace symmoe
