#pragma once

#include <cstddef>
#include <cstdint>

namespace symmoe::measure {

constexpr size_t kLineBytes = 64;

// How to write: through the caches, or past them.
enum class Store : uint8_t { kCached, kNonTemporal };

// Makes every line dirty in this processor's cache and keeps all values. Any alignment, any size.
void rewrite_lines(void* data, size_t bytes);

// The loops below take whole lines: addresses and sizes are multiples of kLineBytes.
struct LineLoops {
  // The xor of all words, so that no load can be left out.
  uint64_t (*read)(const void* data, size_t bytes);
  void (*write)(void* data, size_t bytes, Store store);
  // One line written for `mix` lines read in order: out[i] = in[i*mix] ^ … ^ in[i*mix + mix-1].
  void (*stream)(const void* in, void* out, size_t out_bytes, size_t mix, Store store);
  // out[i] = sources[0][i] ^ sources[1][i] ^ …: the memory's part of summing ranks.
  void (*gather)(const void* const* sources, size_t count, void* out, size_t bytes, Store store);
};

// The widest that this machine has.
const LineLoops& line_loops();

// For tests: nullptr where this machine or compiler has no such instruction set.
const LineLoops* plain_loops();
const LineLoops* avx2_loops();
const LineLoops* avx512_loops();

}  // namespace symmoe::measure
