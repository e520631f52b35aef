#include "collectives/routing.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "base/error.h"

namespace symmoe {

Routing::Routing(int64_t rows, const std::vector<int64_t>& begins,
                 const std::vector<int64_t>& counts, const kernels::SlotRouting& slots)
    : slots_(slots), masks_(static_cast<size_t>(rows)) {
  kernels::route_masks(slots_, 0, rows, masks_.data());
  // What stands behind a rank's rows, up to the next rank's, is padding: its ids mean nothing.
  std::vector<std::pair<int64_t, int64_t>> owned;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    owned.emplace_back(begins[rank], begins[rank] + counts[rank]);
  }
  std::sort(owned.begin(), owned.end());
  int64_t end = 0;
  owned.emplace_back(rows, rows);
  for (const auto& [first, last] : owned) {
    if (first > end) std::fill(masks_.begin() + end, masks_.begin() + first, 0);
    end = std::max(end, last);
  }
  hash_ = kernels::hash_of_masks(masks_.data(), rows);
}

int64_t Routing::rows_written(int rank) const {
  return std::count_if(masks_.begin(), masks_.end(),
                       [rank](uint64_t mask) { return (mask >> rank & 1) != 0; });
}

int64_t Routing::rows_read(int64_t begin, int64_t count) const {
  int64_t read = 0;
  for (int64_t row = begin; row < begin + count; ++row) {
    read += std::popcount(masks_[static_cast<size_t>(row)]);
  }
  return read;
}

kernels::TopkReduceArgs Routing::sum_on(int rank, kernels::TopkReduceArgs sum,
                                        std::vector<int64_t>* index) const {
  const bool summed = sum.index == nullptr && sum.slots == 1 && slots_.slots != 1;
  if (sum.tokens != rows() || (!summed && sum.slots != slots_.slots)) {
    throw InvalidArgument("topk_reduce: the sum is of [" + std::to_string(sum.tokens) + ", " +
                          std::to_string(sum.slots) + "] slots, the routing of [" +
                          std::to_string(rows()) + ", " + std::to_string(slots_.slots) + "]");
  }
  sum.masks = masks_.data();
  sum.bit = uint64_t{1} << rank;
  if (summed) return sum;
  index->resize(masks_.size() * static_cast<size_t>(slots_.slots));
  kernels::route_index(slots_, rank, masks_.data(), rows(), sum.index, sum.index_is_64bit,
                       index->data());
  if (sum.index == nullptr) sum.pairs = sum.tokens * sum.slots;
  sum.index = index->data();
  sum.index_is_64bit = true;
  return sum;
}

}  // namespace symmoe
