// From a router's choice to the ranks that have anything for a row.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/routing.h"

namespace symmoe::kernels {
namespace {

template <typename T>
T read(const void* base, int64_t position) {
  T value;  // memcpy, because the address may have any alignment
  std::memcpy(&value, static_cast<const char*>(base) + position * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

void validate(const SlotRouting& routing) {
  const auto wrong = [](const std::string& what) { throw InvalidArgument("routing: " + what); };
  if (routing.slots < 0 || routing.experts < 0) wrong("negative size");
  if (routing.world < 1 || routing.world > kMaskBits) {
    wrong("masks are of 1 to " + std::to_string(kMaskBits) + " ranks, not of " +
          std::to_string(routing.world));
  }
  if (routing.experts > 0 && routing.expert_to_rank == nullptr) wrong("expert_to_rank is null");
}

// The mask of each expert, and behind them that of any other id: of no rank.
std::vector<uint64_t> masks_of_experts(const SlotRouting& routing) {
  std::vector<uint64_t> masks(static_cast<size_t>(routing.experts) + 1);
  for (int64_t expert = 0; expert < routing.experts; ++expert) {
    const auto rank = read<int32_t>(routing.expert_to_rank, expert);
    if (rank < -1 || rank >= routing.world) {
      throw InvalidArgument("routing: expert_to_rank[" + std::to_string(expert) + "] is " +
                            std::to_string(rank) + ", must be -1 or a rank (0 to " +
                            std::to_string(routing.world - 1) + ")");
    }
    masks[static_cast<size_t>(expert)] = rank < 0 ? 0 : uint64_t{1} << rank;
  }
  return masks;
}

// Below 0 becomes huge, so one comparison finds all ids that are no expert's.
template <typename Id>
uint64_t place_of(const SlotRouting& routing, int64_t position) {
  return std::min(static_cast<uint64_t>(int64_t{read<Id>(routing.ids, position)}),
                  static_cast<uint64_t>(routing.experts));
}

// kSlots is the number of slots, or 0 if it is only known at run time.
template <typename Id, int kSlots>
void mask_rows(const SlotRouting& routing, const uint64_t* of_expert, int64_t begin, int64_t end,
               uint64_t* masks) {
  const int64_t slots = kSlots > 0 ? kSlots : routing.slots;
  for (int64_t row = begin; row < end; ++row) {
    uint64_t mask = 0;
    for (int64_t slot = 0; slot < slots; ++slot) {
      mask |= of_expert[place_of<Id>(routing, row * slots + slot)];
    }
    masks[row] = mask;
  }
}

template <typename Id>
void mask_rows_of(const SlotRouting& routing, const uint64_t* of_expert, int64_t begin, int64_t end,
                  uint64_t* masks) {
  switch (routing.slots) {
    case 1:
      return mask_rows<Id, 1>(routing, of_expert, begin, end, masks);
    case 2:
      return mask_rows<Id, 2>(routing, of_expert, begin, end, masks);
    case 8:
      return mask_rows<Id, 8>(routing, of_expert, begin, end, masks);
    default:
      return mask_rows<Id, 0>(routing, of_expert, begin, end, masks);
  }
}

template <typename Id>
void index_rows(const SlotRouting& routing, int rank, const uint64_t* masks, int64_t rows,
                const void* index, bool index_is_64bit, int64_t* routed) {
  const int64_t slots = routing.slots;
  for (int64_t row = 0; row < rows; ++row) {
    const bool here = (masks[row] >> rank & 1) != 0;
    for (int64_t position = row * slots; position < (row + 1) * slots; ++position) {
      routed[position] = -1;
      if (!here) continue;
      const uint64_t expert = place_of<Id>(routing, position);
      if (expert == static_cast<uint64_t>(routing.experts) ||
          read<int32_t>(routing.expert_to_rank, static_cast<int64_t>(expert)) != rank) {
        continue;
      }
      routed[position] = index == nullptr ? position
                         : index_is_64bit ? read<int64_t>(index, position)
                                          : int64_t{read<int32_t>(index, position)};
    }
  }
}

}  // namespace

void route_masks(const SlotRouting& routing, int64_t begin, int64_t end, uint64_t* masks) {
  validate(routing);
  const std::vector<uint64_t> of_expert = masks_of_experts(routing);
  if (begin >= end) return;
  if (routing.ids == nullptr && routing.slots > 0) {
    throw InvalidArgument("routing: topk_ids has no memory");
  }
  (routing.ids_are_64bit ? mask_rows_of<int64_t> : mask_rows_of<int32_t>)(routing, of_expert.data(),
                                                                          begin, end, masks);
}

uint64_t hash_of_masks(const uint64_t* masks, int64_t rows) {
  // Several chains, because each step waits for the one before. Twice in a step the upper bits are
  // brought down: a product carries differences only upward, and those of the last ranks' bits
  // would stay where other rows' bits could undo them.
  constexpr int kChains = 4;
  constexpr uint64_t kFactors[] = {0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9};
  constexpr int kShifts[] = {32, 29};
  uint64_t chains[kChains] = {1, 2, 3, 4};
  const auto step = [&](uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * kFactors[0];
    hash = (hash ^ hash >> kShifts[0]) * kFactors[1];
    return hash ^ hash >> kShifts[1];
  };
  int64_t row = 0;
  for (; row + kChains <= rows; row += kChains) {
    for (int chain = 0; chain < kChains; ++chain) {
      chains[chain] = step(chains[chain], masks[row + chain]);
    }
  }
  for (int chain = 0; row < rows; ++row, ++chain) chains[chain] = step(chains[chain], masks[row]);
  uint64_t hash = static_cast<uint64_t>(rows);
  for (const uint64_t chain : chains) hash = step(hash, chain);
  return hash == 0 ? 1 : hash;
}

void route_index(const SlotRouting& routing, int rank, const uint64_t* masks, int64_t rows,
                 const void* index, bool index_is_64bit, int64_t* routed) {
  validate(routing);
  (routing.ids_are_64bit ? index_rows<int64_t> : index_rows<int32_t>)(routing, rank, masks, rows,
                                                                      index, index_is_64bit,
                                                                      routed);
}

}  // namespace symmoe::kernels
