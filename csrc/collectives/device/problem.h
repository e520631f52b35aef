#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "collectives/plan.h"

namespace symmoe {

// What a choice of path may depend on: nothing that could differ between ranks.
struct Problem {
  Plan::Kind kind = Plan::Kind::kReduceScatter;
  DType dtype = DType::kBFloat16;
  int world = 1;
  size_t bytes = 0;            // of the largest rank's rows
  size_t total_bytes = 0;      // of all ranks' rows, padding included
  bool even = true;            // every rank has equally many rows, without padding
  bool deterministic = false;  // the sum has to be in rank order
};

Problem problem_of(const Plan& plan, bool deterministic);

}  // namespace symmoe
