#include "measure/lines.h"

#if defined(__x86_64__)

#include <immintrin.h>

namespace symmoe::measure {
namespace {

// Four lines a turn: enough loads in flight to be bound by the memory, not by the loop.
constexpr size_t kTurn = 4 * kLineBytes;

namespace wide512 {

[[gnu::target("avx512f")]] uint64_t read(const void* data, size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  size_t i = 0;
  for (; i + kTurn <= bytes; i += kTurn) {
    a = _mm512_xor_si512(a, _mm512_load_si512(from + i));
    b = _mm512_xor_si512(b, _mm512_load_si512(from + i + kLineBytes));
    c = _mm512_xor_si512(c, _mm512_load_si512(from + i + 2 * kLineBytes));
    d = _mm512_xor_si512(d, _mm512_load_si512(from + i + 3 * kLineBytes));
  }
  for (; i < bytes; i += kLineBytes) a = _mm512_xor_si512(a, _mm512_load_si512(from + i));
  alignas(64) uint64_t words[8];
  _mm512_store_si512(words, _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d)));
  uint64_t sum = 0;
  for (const uint64_t word : words) sum ^= word;
  return sum;
}

[[gnu::target("avx512f")]] void write(void* data, size_t bytes, Store store) {
  auto* to = static_cast<char*>(data);
  const __m512i zero = _mm512_setzero_si512();
  if (store == Store::kCached) {
    for (size_t i = 0; i < bytes; i += kLineBytes) _mm512_store_si512(to + i, zero);
    return;
  }
  for (size_t i = 0; i < bytes; i += kLineBytes) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), zero);
  }
  _mm_sfence();
}

[[gnu::target("avx512f")]] void stream(const void* in, void* out, size_t out_bytes, size_t mix,
                                       Store store) {
  const auto* from = static_cast<const char*>(in);
  auto* to = static_cast<char*>(out);
  for (size_t i = 0; i < out_bytes; i += kLineBytes) {
    __m512i sum = _mm512_load_si512(from);
    from += kLineBytes;
    for (size_t slot = 1; slot < mix; ++slot, from += kLineBytes) {
      sum = _mm512_xor_si512(sum, _mm512_load_si512(from));
    }
    if (store == Store::kCached) {
      _mm512_store_si512(to + i, sum);
    } else {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), sum);
    }
  }
  _mm_sfence();
}

[[gnu::target("avx512f")]] void gather(const void* const* sources, size_t count, void* out,
                                       size_t bytes, Store store) {
  auto* to = static_cast<char*>(out);
  for (size_t i = 0; i < bytes; i += kLineBytes) {
    __m512i sum = _mm512_load_si512(static_cast<const char*>(sources[0]) + i);
    for (size_t slot = 1; slot < count; ++slot) {
      sum = _mm512_xor_si512(sum, _mm512_load_si512(static_cast<const char*>(sources[slot]) + i));
    }
    if (store == Store::kCached) {
      _mm512_store_si512(to + i, sum);
    } else {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), sum);
    }
  }
  _mm_sfence();
}

constexpr LineLoops kLoops{read, write, stream, gather};

}  // namespace wide512

namespace wide256 {

constexpr size_t kHalf = kLineBytes / 2;

[[gnu::target("avx2")]] __m256i load(const char* from) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}

[[gnu::target("avx2")]] void put(char* to, __m256i value, Store store) {
  auto* target = reinterpret_cast<__m256i*>(to);
  if (store == Store::kCached) {
    _mm256_store_si256(target, value);
  } else {
    _mm256_stream_si256(target, value);
  }
}

[[gnu::target("avx2")]] uint64_t read(const void* data, size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  size_t i = 0;
  for (; i + 2 * kLineBytes <= bytes; i += 2 * kLineBytes) {
    a = _mm256_xor_si256(a, load(from + i));
    b = _mm256_xor_si256(b, load(from + i + kHalf));
    c = _mm256_xor_si256(c, load(from + i + 2 * kHalf));
    d = _mm256_xor_si256(d, load(from + i + 3 * kHalf));
  }
  for (; i < bytes; i += kHalf) a = _mm256_xor_si256(a, load(from + i));
  alignas(32) uint64_t words[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words),
                     _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d)));
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

[[gnu::target("avx2")]] void write(void* data, size_t bytes, Store store) {
  auto* to = static_cast<char*>(data);
  const __m256i zero = _mm256_setzero_si256();
  for (size_t i = 0; i < bytes; i += kHalf) put(to + i, zero, store);
  _mm_sfence();
}

[[gnu::target("avx2")]] void stream(const void* in, void* out, size_t out_bytes, size_t mix,
                                    Store store) {
  const auto* from = static_cast<const char*>(in);
  auto* to = static_cast<char*>(out);
  for (size_t i = 0; i < out_bytes; i += kLineBytes) {
    __m256i low = load(from);
    __m256i high = load(from + kHalf);
    from += kLineBytes;
    for (size_t slot = 1; slot < mix; ++slot, from += kLineBytes) {
      low = _mm256_xor_si256(low, load(from));
      high = _mm256_xor_si256(high, load(from + kHalf));
    }
    put(to + i, low, store);
    put(to + i + kHalf, high, store);
  }
  _mm_sfence();
}

[[gnu::target("avx2")]] void gather(const void* const* sources, size_t count, void* out,
                                    size_t bytes, Store store) {
  auto* to = static_cast<char*>(out);
  for (size_t i = 0; i < bytes; i += kHalf) {
    __m256i sum = load(static_cast<const char*>(sources[0]) + i);
    for (size_t slot = 1; slot < count; ++slot) {
      sum = _mm256_xor_si256(sum, load(static_cast<const char*>(sources[slot]) + i));
    }
    put(to + i, sum, store);
  }
  _mm_sfence();
}

constexpr LineLoops kLoops{read, write, stream, gather};

}  // namespace wide256
}  // namespace

const LineLoops* avx512_loops() {
  return __builtin_cpu_supports("avx512f") ? &wide512::kLoops : nullptr;
}

const LineLoops* avx2_loops() {
  return __builtin_cpu_supports("avx2") ? &wide256::kLoops : nullptr;
}

}  // namespace symmoe::measure

#else

namespace symmoe::measure {

const LineLoops* avx512_loops() { return nullptr; }
const LineLoops* avx2_loops() { return nullptr; }

}  // namespace symmoe::measure

#endif
