#include "collectives/device/cost_model.h"

#include <algorithm>
#include <cmath>

namespace symmoe {
namespace {

constexpr int kBlackwell = 10;

// Per hop of a ring: what NCCL's ordinary kernel takes longer than the symmetric one, as published
// for 8 GPUs.
constexpr double kRingStepUs = 1.5;

double local_us(const Problem& problem, const LinkRates& rates) {
  return std::max(kCopyUs, 2.0 * static_cast<double>(problem.bytes) / rates.memory_bytes_per_us);
}

// Every path pulls the own rows of all peers; the memory reads all rows and writes the own ones.
// `share` of the rows of others matter.
double transfer_us(const Problem& problem, const LinkRates& rates, double share) {
  const double pulled = static_cast<double>(problem.bytes) * (problem.world - 1) * share;
  const double touched =
      static_cast<double>(problem.total_bytes) * share + static_cast<double>(problem.bytes);
  return std::max(pulled / rates.link_bytes_per_us, touched / rates.memory_bytes_per_us);
}

// The top-k sum in front: what it reads of the experts here, and `share` of the rows written. If
// experts are spread over the ranks; where every rank has a part of each, it reads more.
double sum_bytes(const Problem& problem, double share) {
  const double here = static_cast<double>(std::max(problem.form.slots, 1)) / problem.world;
  return static_cast<double>(problem.total_bytes) * (here + share);
}

double collective_us(PathKind kind, const Problem& problem, const LinkRates& rates) {
  const double dense = rates.start_us + transfer_us(problem, rates, 1.0);
  const double ring = kRingStepUs * problem.world;
  switch (kind) {
    case PathKind::kLocal:
      return local_us(problem, rates);
    case PathKind::kDirect:
    case PathKind::kPull:
      return dense;
    case PathKind::kPlain:
      return dense + ring;
    case PathKind::kGrouped:  // every root's reduce is a ring of its own
      return dense + ring * problem.world / 2.0;
    case PathKind::kOrdered: {  // the rows lie in scratch in between
      const auto scratch = static_cast<double>(problem.bytes) * problem.world;
      return dense + kLaunchUs + 2.0 * scratch / rates.memory_bytes_per_us;
    }
    case PathKind::kRouted:
    case PathKind::kFused:
      return rates.start_us + transfer_us(problem, rates, present_share(problem));
  }
  return 0.0;
}

// What a call does in front of its collective.
double preparation_us(PathKind kind, const Problem& problem, const LinkRates& rates) {
  const double memory = rates.memory_bytes_per_us;
  const bool by_mask = takes_routing(kind);
  const double share = by_mask ? present_share(problem) : 1.0;
  double us = by_mask && problem.form.routed ? kLaunchUs : 0.0;  // the mask
  if (problem.form.from_sum) {
    const double bytes = sum_bytes(problem, share);
    us += kind == PathKind::kFused ? bytes / (memory * kFusedMemoryShare)
                                   : kLaunchUs + bytes / memory;
  } else if (problem.form.routed && !by_mask && kind != PathKind::kLocal) {
    // Rows that nobody wrote have to become zeros first: the rows that there are go elsewhere.
    us += kLaunchUs + 2.0 * static_cast<double>(problem.total_bytes) / memory;
  }
  return us;
}

}  // namespace

LinkRates rates_of(int major) {
  if (major >= kBlackwell) {
    return {.start_us = 10.3, .link_bytes_per_us = 650e3, .memory_bytes_per_us = 8.0e6};
  }
  return {};
}

double present_share(const Problem& problem) {
  if (!problem.form.routed || problem.form.slots <= 0) return 1.0;
  return 1.0 - std::pow(1.0 - 1.0 / problem.world, problem.form.slots);
}

double predicted_us(PathKind kind, const Problem& problem, const LinkRates& rates) {
  return preparation_us(kind, problem, rates) + collective_us(kind, problem, rates);
}

}  // namespace symmoe
