#pragma once

#include "collectives/device/path.h"
#include "collectives/device/problem.h"

namespace symmoe {

// What a device can do. Start and link are fitted to what others have published of NCCL's symmetric
// kernels (python/symmoe/bench/path_model.py does that, and a test compares); own kernels, which
// have the same barriers and read the same bytes, are assumed to do as well. The same on all ranks:
// they agree on the kind of device at the start.
struct LinkRates {
  double start_us = 4.8;                // of a collective without bytes
  double link_bytes_per_us = 307e3;     // NVLink, in one direction
  double memory_bytes_per_us = 3.35e6;  // the device's own, by its maker
};

// For a compute capability: 9 is Hopper, 10 Blackwell.
LinkRates rates_of(int major);

constexpr double kLaunchUs = 3.0;  // one more kernel in the stream: an assumption
constexpr double kCopyUs = 3.4;    // a copy at least: published
// A fused kernel makes the sum with the few blocks that may wait for peers: an assumption.
constexpr double kFusedMemoryShare = 0.5;

// The share of the rows that a rank holds something of, if experts are chosen evenly; 1 unless the
// call is routed.
double present_share(const Problem& problem);

// Predicted time of a path in microseconds, the top-k sum included where the call makes one. A
// model: latency plus bytes over bandwidth, with the constants of docs/paths.md; good for an order,
// not for a promise.
double predicted_us(PathKind kind, const Problem& problem, const LinkRates& rates);

}  // namespace symmoe
