#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectives/exchange.h"
#include "collectives/plan.h"
#include "collectives/routing.h"
#include "windows/window.h"

namespace symmoe {

// What one collective has of its own; all else about a call that moves rows is the engine's.
struct Operation {
  Plan::Kind kind;
  bool routed;  // takes a routing

  // Copies the part of `input` that peers will read to the same place in the stage window.
  void (*stage)(const Plan& plan, const Routing* routing, const std::byte* input, std::byte* stage,
                int threads);

  // Makes this rank's output from the own rows and the peers' windows. All ranks have published.
  void (*transfer)(Exchange& exchange, WindowSource& source, const Plan& plan,
                   const Routing* routing, const std::byte* own_rows, std::byte* output,
                   int threads);
};

// One call of it.
struct Call {
  const Operation& operation;
  const Plan& plan;
  const Routing* routing;  // of a routed operation
  void* output;
  int threads;
  std::atomic<uint64_t>& count;  // of calls served that way
};

extern const Operation kReduceScatter;
extern const Operation kRoutedReduceScatter;
extern const Operation kAllGather;

}  // namespace symmoe
