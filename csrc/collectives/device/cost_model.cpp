#include "collectives/device/cost_model.h"

#include <algorithm>

namespace symmoe {
namespace {

constexpr int kBlackwell = 10;

// Start, barriers and end of one collective.
constexpr double kSymmetricUs = 9.0;  // NCCL's symmetric kernels, 8 ranks, smallest sizes
constexpr double kRingStepUs = 2.2;   // per hop of a ring
constexpr double kLaunchUs = 3.0;     // one more kernel in the stream
constexpr double kCopyEngineUs = 4.0;

double local_us(const Problem& problem, const LinkRates& rates) {
  return kCopyEngineUs + 2.0 * static_cast<double>(problem.bytes) / rates.memory_bytes_per_us;
}

// Every path pulls the own rows of all peers; the memory reads all rows and writes the own ones.
double transfer_us(const Problem& problem, const LinkRates& rates) {
  const double pulled = static_cast<double>(problem.bytes) * (problem.world - 1);
  const auto touched = static_cast<double>(problem.total_bytes + problem.bytes);
  return std::max(pulled / rates.link_bytes_per_us, touched / rates.memory_bytes_per_us);
}

}  // namespace

LinkRates rates_of(int major) {
  if (major >= kBlackwell) return {.link_bytes_per_us = 720e3, .memory_bytes_per_us = 8.0e6};
  return {};
}

double predicted_us(PathKind kind, const Problem& problem, const LinkRates& rates) {
  const double moved = transfer_us(problem, rates);
  const double ring = kRingStepUs * problem.world;
  switch (kind) {
    case PathKind::kLocal:
      return local_us(problem, rates);
    case PathKind::kDirect:
      return kSymmetricUs + moved;
    case PathKind::kPlain:
      return kSymmetricUs + ring + moved;
    case PathKind::kGrouped:  // every root's reduce is a ring of its own
      return kSymmetricUs + ring * problem.world / 2.0 + moved;
    case PathKind::kOrdered: {  // the rows lie in scratch in between
      const auto scratch = static_cast<double>(problem.bytes) * problem.world;
      return kSymmetricUs + kLaunchUs + moved + 2.0 * scratch / rates.memory_bytes_per_us;
    }
  }
  return 0.0;
}

}  // namespace symmoe
