#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

// The kernels of calls that know which rank has which experts. Rules as in kernels.h. A *mask*
// stands for a row: bit r is set if rank r has one of the row's experts.
namespace symmoe::kernels {

constexpr int kMaskBits = 64;

// What a router chose, and where it is.
struct SlotRouting {
  const void* ids = nullptr;  // [rows, slots], physical experts; outside of 0..experts-1: none
  const void* expert_to_rank = nullptr;  // [experts] int32, -1: on no rank
  int64_t slots = 0;
  int64_t experts = 0;
  int world = 0;
  bool ids_are_64bit = false;
};

// Writes the masks of rows begin..end-1 to masks[begin..end-1]. Throws InvalidArgument if an
// expert's rank is none of -1..world-1.
void route_masks(const SlotRouting& routing, int64_t begin, int64_t end, uint64_t* masks);

// A number that differs, in all likelihood, for different masks; never 0.
uint64_t hash_of_masks(const uint64_t* masks, int64_t rows);

// Writes [rows, slots]: the slot's row of the expert output if its expert is on `rank`, else -1.
// The row is what `index` says, [rows, slots], or without one the slot's number. Only rows whose
// mask has the rank are looked at.
void route_index(const SlotRouting& routing, int rank, const uint64_t* masks, int64_t rows,
                 const void* index, bool index_is_64bit, int64_t* routed);

// Per row: the sum over the ranks in its mask, in rank order, as rank_reduce's; +0 if there is
// none. Other ranks' rows are never read.
struct RoutedReduceArgs {
  const void* const* sources = nullptr;  // by rank: [rows, hidden]
  const uint64_t* masks = nullptr;       // [rows]
  int ranks = 0;
  void* output = nullptr;  // [rows, hidden]; may be exactly one of the sources
  int64_t rows = 0;
  int64_t hidden = 0;
  DType type = DType::kBFloat16;
};
void routed_reduce(const RoutedReduceArgs& args, int threads);

// Copies those of `rows` rows whose mask has `rank`.
void copy_routed(void* destination, const void* source, const uint64_t* masks, int rank,
                 int64_t rows, size_t row_bytes, int threads);

}  // namespace symmoe::kernels
