#pragma once

#include <cstdint>

namespace symmoe::emulator {

// A meeting point of the threads of a block or of a warp.
struct Barrier {
  unsigned arrived = 0;
  unsigned generation = 0;
  // Where those that wait came from.
  std::uint_least32_t line = 0;
  const char* file = nullptr;
  // What orders the threads for the thread sanitizer. Two, in turn: with only one, a thread that
  // leaves late would learn of what others did after this meeting, which would hide races.
  char order[2] = {};
};

}  // namespace symmoe::emulator
