#pragma once

#include "collectives/device/path.h"
#include "collectives/device/problem.h"

namespace symmoe {

// What a device can do, in round numbers. The same on all ranks: they agree on it at the start.
struct LinkRates {
  double link_bytes_per_us = 360e3;      // NVLink, per direction, as NCCL attains it
  double own_link_bytes_per_us = 300e3;  // as few blocks of an own kernel do
  double memory_bytes_per_us = 3.3e6;    // the device's own
};

// For a compute capability: 9 is Hopper, 10 Blackwell.
LinkRates rates_of(int major);

// The share of the rows that a rank holds something of, if experts are chosen evenly; 1 unless the
// call is routed.
double present_share(const Problem& problem);

// Predicted time of a path in microseconds, the top-k sum included where the call makes one. A
// model: latency plus bytes over bandwidth, with the constants of docs/paths.md; good for an order,
// not for a promise.
double predicted_us(PathKind kind, const Problem& problem, const LinkRates& rates);

}  // namespace symmoe
