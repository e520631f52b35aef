#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectives/exchange.h"
#include "collectives/plan.h"
#include "collectives/routing.h"
#include "kernels/cpu/epilogue.h"
#include "windows/window.h"

namespace symmoe {

struct Call;

// What one collective has of its own; all else about a call that moves rows is the engine's.
struct Operation {
  Plan::Kind kind;
  bool routed;  // takes a routing

  // Copies the part of `input` that peers will read to the same place in the stage window.
  void (*stage)(const Plan& plan, const Routing* routing, const std::byte* input, std::byte* stage,
                int threads);

  // Makes this rank's output from the own rows and the peers' windows. All ranks have published.
  void (*transfer)(Exchange& exchange, WindowSource& source, const Call& call,
                   const std::byte* own_rows);
};

// One call of it.
struct Call {
  const Operation& operation;
  const Plan& plan;
  const Routing* routing;  // of a routed operation
  void* output;
  int threads;
  std::atomic<uint64_t>& count;  // of calls served that way
  // What this rank does with its summed rows; each rank's own affair.
  const kernels::Epilogue* epilogue = nullptr;

  size_t output_bytes() const {
    if (epilogue == nullptr) return plan.output_bytes();
    return plan.output_bytes() / size_of(plan.dtype) * epilogue->output_size(plan.dtype);
  }
};

extern const Operation kReduceScatter;
extern const Operation kRoutedReduceScatter;
extern const Operation kAllGather;

}  // namespace symmoe
