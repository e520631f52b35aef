#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cpu/routing.h"

namespace symmoe::kernels {

// Some ranks' copies of a row, in rank order.
struct RowSources {
  const void* at[kMaskBits];
  int ranks = 0;

  // Of the ranks in the mask, `offset` bytes into what they have.
  void set(const void* const* sources, uint64_t mask, int64_t offset) {
    ranks = 0;
    for (uint64_t left = mask; left != 0; left &= left - 1) {
      at[ranks++] = static_cast<const char*>(sources[std::countr_zero(left)]) + offset;
    }
  }
};

}  // namespace symmoe::kernels
