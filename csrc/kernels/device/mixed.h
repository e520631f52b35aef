#pragma once

#include "kernels/device/dev.h"

// Hashes by which ranks find out that they were given different values.
namespace symmoe::kernels::SYMMOE_PLATFORM {

// The last steps of splitmix64: every bit of the input reaches every bit of the result.
SYMMOE_DEVICE uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// Of one value of a list. The sum over a list, in any order, is a hash of the list in its order.
SYMMOE_DEVICE uint64_t mixed_at(int64_t place, uint64_t value) {
  return mixed(value ^ mixed(static_cast<uint64_t>(place) + 1));
}

}  // namespace symmoe::kernels::SYMMOE_PLATFORM
