#include "collectives/device/problem.h"

#include <algorithm>

namespace symmoe {

Problem problem_of(const Plan& plan, bool deterministic) {
  const int64_t most = *std::max_element(plan.counts.begin(), plan.counts.end());
  bool even = true;
  for (size_t rank = 0; rank < plan.counts.size(); ++rank) {
    even = even && plan.counts[rank] == most && plan.begins[rank] == most * int64_t(rank);
  }
  return {.kind = plan.kind,
          .dtype = plan.dtype,
          .world = static_cast<int>(plan.counts.size()),
          .bytes = plan.bytes_of(most),
          .total_bytes = plan.bytes_of(plan.rows),
          .even = even && plan.rows == most * int64_t(plan.counts.size()),
          .deterministic = deterministic};
}

}  // namespace symmoe
