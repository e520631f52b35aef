#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "collectives/device/path.h"

namespace symmoe {

// One line of a tuning table, as `symmoe tune` measured it.
struct TunedTime {
  PathKind path = PathKind::kDirect;
  DType dtype = DType::kBFloat16;
  size_t bytes = 0;  // rows of one rank
  double us = 0.0;
};

// Measured times of reduce_scatter, for even rows. The same table on every rank.
class Tuning {
 public:
  Tuning() = default;
  explicit Tuning(std::vector<TunedTime> times);

  // The time for this size: between two measured sizes, linear in the bytes; beyond the largest,
  // in proportion. Nullopt if the path was not measured for this type.
  std::optional<double> us(PathKind path, DType dtype, size_t bytes) const;

  // Whether the path is the fastest at some measured size.
  bool wants(PathKind path) const;

  bool empty() const { return times_.empty(); }

 private:
  std::vector<TunedTime> times_;  // by path, type and size
};

}  // namespace symmoe
