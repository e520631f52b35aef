#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "collectives/plan.h"

namespace symmoe {

// What of a call is not in its plan.
struct CallForm {
  bool deterministic = false;  // the sum has to be in rank order
  bool from_sum = false;       // the rows are a top-k sum that the call makes itself
  bool routed = false;         // it is known which ranks hold something of which row
  int slots = 0;               // experts per token, of a sum or a routing; 0: unknown
};
constexpr int kForms = 8;

// Where a form stands among all, whatever its slots.
constexpr size_t index_of(const CallForm& form) {
  return (form.deterministic ? 1u : 0u) + (form.from_sum ? 2u : 0u) + (form.routed ? 4u : 0u);
}

// What a choice of path may depend on: nothing that could differ between ranks.
struct Problem {
  Plan::Kind kind = Plan::Kind::kReduceScatter;
  DType dtype = DType::kBFloat16;
  int world = 1;
  size_t bytes = 0;           // of the largest rank's rows
  size_t total_bytes = 0;     // of all ranks' rows, padding included
  bool even = true;           // every rank has equally many rows, without padding
  bool device_sizes = false;  // how many rows each rank has is only known on the device
  CallForm form = {};
};

Problem problem_of(const Plan& plan, const CallForm& form);

}  // namespace symmoe
