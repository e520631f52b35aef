#pragma once

#include <cstdint>

namespace symmoe::kernels {

// Outputs of at least this size are written by non-temporal stores, which save the read of each
// line before it is written: a reduce over 2 or 4 ranks took 8-12 % less time at 8 MiB, 16 % at 32
// MiB. Smaller outputs are read next, by this rank or by its peers, and should be in a cache then,
// so the 5-12 % that the writer alone would gain at 1-4 MiB are not taken.
constexpr int64_t kStreamBytes = 8 << 20;

// Inputs of at least this size do not fit a core's own caches: rows are then read one after the
// other with prefetch. For 8 and more slots that was 1.4 to 1.7 times as fast from memory as
// reading a token's rows side by side, and about 20 % slower from the second-level cache.
constexpr int64_t kBeyondPrivateCaches = 2 << 20;

}  // namespace symmoe::kernels
