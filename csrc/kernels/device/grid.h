#pragma once

#include <algorithm>
#include <cstdint>

// How many threads a launch gets.
namespace symmoe::kernels {

constexpr int kMaxBlockThreads = 256;

// More blocks than run at once, so that one that starts late does not make all wait for it; few
// enough that starting them costs little beside what they do.
constexpr int64_t kWaves = 4;
constexpr int64_t kThreadsPerMultiprocessor = 2048;

inline int64_t divided_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

// The most blocks that make sense, at least one.
inline int64_t useful_blocks(int multiprocessors, int64_t block_threads) {
  const int64_t at_once = std::max(multiprocessors, 1) * kThreadsPerMultiprocessor / block_threads;
  return at_once * kWaves;
}

// The widest loads and stores need addresses that are multiples of this.
constexpr int64_t kBoundary = 16;

inline int64_t bytes_to_boundary(const void* address) {
  return static_cast<int64_t>(-reinterpret_cast<uintptr_t>(address) % kBoundary);
}

}  // namespace symmoe::kernels
