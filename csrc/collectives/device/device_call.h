#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/device/route_masks.h"
#include "collectives/plan.h"
#include "kernels/epilogue.h"
#include "runtime/stream.h"

namespace symmoe {

// What a call brings beside its plan. Pointers are device memory.
struct DeviceCall {
  void* output = nullptr;
  int64_t output_rows = 0;         // that it has room for
  const int32_t* sizes = nullptr;  // [world]; exactly where the plan has none
  DeviceRouting* routing = nullptr;
  bool summed = false;  // with a routing: rows, not the slots of a sum, are there or not
  bool deterministic = false;
  StreamHandle stream = nullptr;
  // What this rank does to its own rows behind their sum: nobody else's affair.
  const kernels::Epilogue* epilogue = nullptr;
  void* sums = nullptr;  // if it quantises: room for the sums, which the output has not

  // Where a path that takes no epilogue leaves the sums.
  void* sums_or_output() const {
    const bool quantizes = epilogue != nullptr && epilogue->quantized != kernels::Quantized::kNone;
    return quantizes ? sums : output;
  }
};

// A call that is not the engine's to queue: torch.distributed does what no path can. Pointers are
// device memory.
struct OutsideCall {
  Plan::Kind kind = Plan::Kind::kAllGather;
  int lane = 0;
  const void* input = nullptr;
  void* output = nullptr;
  size_t output_bytes = 0;
  StreamHandle stream = nullptr;
};

}  // namespace symmoe
