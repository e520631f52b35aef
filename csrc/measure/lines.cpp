#include "measure/lines.h"

#include <cstring>

namespace symmoe::measure {
namespace {

constexpr size_t kWords = kLineBytes / sizeof(uint64_t);

uint64_t read(const void* data, size_t bytes) {
  const auto* words = static_cast<const uint64_t*>(data);
  uint64_t sums[kWords] = {};
  for (size_t i = 0; i < bytes / sizeof(uint64_t); i += kWords) {
    for (size_t j = 0; j < kWords; ++j) sums[j] ^= words[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum ^= part;
  return sum;
}

// No portable store goes past the caches: both kinds are the same here.
void write(void* data, size_t bytes, Store) { std::memset(data, 0, bytes); }

void stream(const void* in, void* out, size_t out_bytes, size_t mix, Store) {
  const auto* source = static_cast<const uint64_t*>(in);
  auto* target = static_cast<uint64_t*>(out);
  for (size_t line = 0; line < out_bytes / kLineBytes; ++line) {
    uint64_t sums[kWords] = {};
    for (size_t slot = 0; slot < mix; ++slot, source += kWords) {
      for (size_t j = 0; j < kWords; ++j) sums[j] ^= source[j];
    }
    std::memcpy(target + line * kWords, sums, kLineBytes);
  }
}

void gather(const void* const* sources, size_t count, void* out, size_t bytes, Store) {
  auto* target = static_cast<uint64_t*>(out);
  for (size_t i = 0; i < bytes / sizeof(uint64_t); i += kWords) {
    uint64_t sums[kWords] = {};
    for (size_t slot = 0; slot < count; ++slot) {
      const auto* source = static_cast<const uint64_t*>(sources[slot]) + i;
      for (size_t j = 0; j < kWords; ++j) sums[j] ^= source[j];
    }
    std::memcpy(target + i, sums, kLineBytes);
  }
}

constexpr LineLoops kPlain{read, write, stream, gather};

}  // namespace

void rewrite_lines(void* data, size_t bytes) {
  // One volatile byte a line: the compiler may drop neither the load nor the store.
  auto* begin = static_cast<volatile unsigned char*>(data);
  const size_t to_line = (kLineBytes - reinterpret_cast<uintptr_t>(data) % kLineBytes) % kLineBytes;
  if (to_line != 0 && bytes != 0) begin[0] = begin[0];
  for (size_t i = to_line; i < bytes; i += kLineBytes) begin[i] = begin[i];
}

const LineLoops* plain_loops() { return &kPlain; }

const LineLoops& line_loops() {
  static const LineLoops& best = []() -> const LineLoops& {
    if (const LineLoops* loops = avx512_loops()) return *loops;
    if (const LineLoops* loops = avx2_loops()) return *loops;
    return kPlain;
  }();
  return best;
}

}  // namespace symmoe::measure
