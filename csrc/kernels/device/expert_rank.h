#pragma once

#include "kernels/device/dev.h"
#include "kernels/device/launch.h"

// Where a token's experts are.
namespace symmoe::kernels::SYMMOE_PLATFORM {

constexpr int32_t kNobody = -1;

SYMMOE_DEVICE int64_t integer_at(const void* integers, bool are_64bit, int64_t position) {
  const char* const bytes = static_cast<const char*>(integers);
  if (are_64bit) return dev::load_read_only<int64_t>(bytes + position * 8);
  return dev::load_read_only<int32_t>(bytes + position * 4);
}

// What the table says of the expert: kNobody for padding. Not checked.
SYMMOE_DEVICE int32_t rank_of(const int32_t* expert_to_rank, int64_t experts, int64_t expert) {
  if (expert < 0 || expert >= experts) return kNobody;
  return dev::load_read_only<int32_t>(expert_to_rank + expert);
}

// Whether the routing leaves the slot to this rank.
SYMMOE_DEVICE bool is_own(const RoutingView& routing, int64_t position) {
  if (routing.ids == nullptr) return true;
  const int64_t expert = integer_at(routing.ids, routing.ids_are_64bit, position);
  return rank_of(routing.expert_to_rank, routing.experts, expert) == routing.rank;
}

// Whether this rank writes the token's row.
SYMMOE_DEVICE bool writes(const RoutingView& routing, int64_t token) {
  if (routing.mask == nullptr) return true;
  return (dev::load_read_only<uint64_t>(routing.mask + token) >> routing.rank & 1u) != 0;
}

}  // namespace symmoe::kernels::SYMMOE_PLATFORM
