#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/routing.h"

namespace symmoe {

// The routing of one call: for each row, which ranks have one of its experts. Equal on all ranks,
// which calls verify by its hash.
class Routing {
 public:
  // Masks of all ranks' rows, rank r's `counts[r]` from `begins[r]` on; the others are padding and
  // have none. `slots` refers to the caller's memory, which sum_on reads again. Throws
  // InvalidArgument if an expert is on a rank that does not exist.
  Routing(int64_t rows, const std::vector<int64_t>& begins, const std::vector<int64_t>& counts,
          const kernels::SlotRouting& slots);

  int64_t rows() const { return static_cast<int64_t>(masks_.size()); }
  const uint64_t* masks() const { return masks_.data(); }
  uint64_t hash() const { return hash_; }  // never 0
  const kernels::SlotRouting& slots() const { return slots_; }

  // Rows that `rank` writes.
  int64_t rows_written(int rank) const;
  // Partial rows, of all ranks, that the owner of `count` rows from `begin` on reads.
  int64_t rows_read(int64_t begin, int64_t count) const;

  // `sum` on `rank`, restricted: it writes no row but those whose mask has the rank, and reads no
  // slot but those whose expert is there. One slot per row without an index, where the routing has
  // more, are rows that the experts have summed themselves. `index` holds what the result refers
  // to, as this routing does.
  kernels::TopkReduceArgs sum_on(int rank, kernels::TopkReduceArgs sum,
                                 std::vector<int64_t>* index) const;

 private:
  kernels::SlotRouting slots_;
  std::vector<uint64_t> masks_;
  uint64_t hash_ = 0;
};

}  // namespace symmoe
