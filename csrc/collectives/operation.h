#pragma once

#include <cstddef>

#include "collectives/exchange.h"
#include "collectives/plan.h"
#include "windows/window.h"

namespace symmoe {

// What one collective has of its own; all else about a call that moves rows is the engine's.
struct Operation {
  Plan::Kind kind;

  // Copies the part of `input` that peers will read to the same place in the stage window.
  void (*stage)(const Plan& plan, const std::byte* input, std::byte* stage, int threads);

  // Makes this rank's output from the own rows and the peers' windows. All ranks have published.
  void (*transfer)(Exchange& exchange, WindowSource& source, const Plan& plan,
                   const std::byte* own_rows, std::byte* output, int threads);
};

extern const Operation kReduceScatter;
extern const Operation kAllGather;

}  // namespace symmoe
