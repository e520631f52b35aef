#pragma once

#include "collectives/device/path.h"
#include "collectives/device/problem.h"

namespace symmoe {

// What a device can do, in round numbers. The same on all ranks: they agree on it at the start.
struct LinkRates {
  double link_bytes_per_us = 360e3;    // NVLink, per direction, as NCCL attains it
  double memory_bytes_per_us = 3.3e6;  // the device's own
};

// For a compute capability: 9 is Hopper, 10 Blackwell.
LinkRates rates_of(int major);

// Predicted time of a path in microseconds. A model: latency plus bytes over bandwidth, with
// the constants of docs/paths.md; good for an order, not for a promise.
double predicted_us(PathKind kind, const Problem& problem, const LinkRates& rates);

}  // namespace symmoe
