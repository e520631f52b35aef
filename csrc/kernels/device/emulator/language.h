#pragma once

#include <cmath>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "base/clock.h"
#include "kernels/device/emulator/block.h"
#include "kernels/device/emulator/launch.h"
#include "kernels/device/emulator/memory.h"
#include "kernels/device/emulator/numbers.h"

// What a kernel's source needs in order to be compiled for the processor by an ordinary compiler.

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

namespace symmoe::emulator {

inline unsigned thread() { return Block::current()->thread_index(); }
inline unsigned threads() { return Block::current()->threads(); }
inline unsigned block() { return Block::current()->index(); }
inline unsigned blocks() { return Block::current()->blocks(); }

inline void sync_block(std::source_location where = std::source_location::current()) {
  Block::current()->sync(where);
}
inline bool sync_block_and(bool mine,
                           std::source_location where = std::source_location::current()) {
  return Block::current()->sync_and(mine, where);
}
inline void sync_warp(std::source_location where = std::source_location::current()) {
  Block::current()->sync_warp(where);
}

// The value that another lane of the warp gives. All lanes take part.
template <typename T>
T shuffle(T value, unsigned lane, std::source_location where = std::source_location::current()) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  Block::current()->show(word);
  sync_warp(where);
  word = Block::current()->shown_by(lane);
  sync_warp(where);
  std::memcpy(&value, &word, sizeof(T));
  return value;
}
template <typename T>
T shuffle_xor(T value, unsigned mask,
              std::source_location where = std::source_location::current()) {
  return shuffle(value, (thread() % kWarp) ^ mask, where);
}

inline void spin() { Block::current()->spin(); }
inline void pause() { Block::current()->pause(); }
inline uint64_t clock_ns() { return static_cast<uint64_t>(now_ns()); }

// The block's variable for one place in the source.
template <typename T>
T& shared_variable(const void* site) {
  static_assert(std::is_trivially_default_constructible_v<T> && std::is_trivially_copyable_v<T>);
  return *static_cast<T*>(Block::current()->shared(site, sizeof(T)));
}

template <typename T>
T load(const void* from, Access access) {
  note_access(from, sizeof(T), access);
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename T>
void store(void* to, const T& value) {
  note_access(to, sizeof(T), Access::kStore);
  std::memcpy(to, &value, sizeof value);
}

}  // namespace symmoe::emulator
