#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernels.h"

namespace symmoe {

// Memory that a call reads or writes.
struct MemoryRange {
  const std::byte* begin = nullptr;
  size_t bytes = 0;
};

inline bool is_apart(MemoryRange a, MemoryRange b) {
  return a.begin + a.bytes <= b.begin || b.begin + b.bytes <= a.begin;
}

// Expert output, weights, index; the last two may be empty.
using CombineInputs = std::array<MemoryRange, 3>;

// How a combine ended.
enum class Combined : uint8_t {
  kDone,
  // Some rank had no window for the call: all ranks must take their fallback now. The sum was
  // written, but nothing else.
  kNoWindow,
  // Nothing has happened: there is no window here that is large enough, or memory overlaps. Who
  // calls acquire, topk_reduce and reduce_scatter instead gets a window, or hears what is wrong.
  kUnready,
};

}  // namespace symmoe
