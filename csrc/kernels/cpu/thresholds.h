#pragma once

#include <cstdint>

namespace symmoe::kernels {

// Outputs of at least this size are written by non-temporal stores. Beyond the second-level cache
// they save the read of each line before it is written: at 8 MiB a reduce took 10-15 % less time,
// at 32 MiB 25 %, at 1-4 MiB the same. Smaller outputs are read next, by this rank or by its peers,
// and have to be found in a cache then.
constexpr int64_t kStreamBytes = 8 << 20;

// Inputs of at least this size do not fit a core's own caches: rows are then read one after the
// other with prefetch. From memory that was 1.6 times as fast as reading a token's rows side by
// side; in the second-level cache it was 15 % slower.
constexpr int64_t kBeyondPrivateCaches = 2 << 20;

}  // namespace symmoe::kernels
