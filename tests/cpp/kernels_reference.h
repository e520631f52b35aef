#pragma once

// Scalar reference for the kernels: one element at a time, by values instead of bit tricks, so that
// it shares no idea with the code under test. Also the memory and the data the tests use.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "kernels/cpu/kernels.h"

namespace symmoe::reference {

struct Format {
  int exponent_bits;
  int fraction_bits;
};
inline Format format_of(DType type) {
  return type == DType::kBFloat16 ? Format{8, 7} : Format{5, 10};
}

inline float decode(DType type, const char* from) {
  if (type == DType::kFloat32) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  const Format format = format_of(type);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> format.fraction_bits;
  const int fraction = bits & ((1 << format.fraction_bits) - 1);
  double value;
  if (exponent == (1 << format.exponent_bits) - 1) {
    value = fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                          : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, 1 - bias - format.fraction_bits);
  } else {
    value =
        std::ldexp(fraction + (1 << format.fraction_bits), exponent - bias - format.fraction_bits);
  }
  return static_cast<float>((bits & 0x8000) != 0 ? -value : value);
}

inline void encode(DType type, float value, char* to) {
  if (type == DType::kFloat32) {
    std::memcpy(to, &value, sizeof value);
    return;
  }
  const Format format = format_of(type);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int infinity = ((1 << format.exponent_bits) - 1) << format.fraction_bits;
  int bits;
  if (std::isnan(value)) {
    bits = 0x7fff;
  } else {
    const double magnitude = std::fabs(static_cast<double>(value));
    if (std::isinf(magnitude)) {
      bits = infinity;
    } else if (magnitude == 0) {
      bits = 0;
    } else {
      // Counted in units of the last place; a carry into the next exponent needs no special case.
      const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
      const auto units =
          static_cast<int>(std::nearbyint(std::ldexp(magnitude, format.fraction_bits - exponent)));
      bits = std::min(infinity, ((exponent + bias - 1) << format.fraction_bits) + units);
    }
    if (std::signbit(value)) bits |= 0x8000;
  }
  const auto half = static_cast<uint16_t>(bits);
  std::memcpy(to, &half, sizeof half);
}

// Products and sums of two floats are exact enough in double to be rounded only once.
inline float multiply(float a, float b) { return static_cast<float>(double{a} * double{b}); }
inline float add(float a, float b) { return static_cast<float>(double{a} + double{b}); }

inline std::vector<char> topk_reduce(const kernels::TopkReduceArgs& args) {
  const auto in_size = static_cast<int64_t>(size_of(args.input_type));
  const auto out_size = static_cast<int64_t>(size_of(args.output_type));
  const auto weight_size = static_cast<int64_t>(size_of(args.weights_type));
  std::vector<char> output(static_cast<size_t>(args.tokens * args.hidden * out_size));
  for (int64_t i = 0; i < args.tokens * args.hidden; ++i) {
    const int64_t token = i / args.hidden;
    float sum = 0.0f;
    bool first = true;
    for (int64_t slot = token * args.slots; slot < (token + 1) * args.slots; ++slot) {
      int64_t row = slot;
      if (args.index != nullptr && args.index_is_64bit) {
        std::memcpy(&row, static_cast<const char*>(args.index) + slot * 8, 8);
      } else if (args.index != nullptr) {
        int32_t narrow;
        std::memcpy(&narrow, static_cast<const char*>(args.index) + slot * 4, 4);
        row = narrow;
      }
      if (row < 0) continue;
      const float x = decode(args.input_type, static_cast<const char*>(args.input) +
                                                  (row * args.hidden + i % args.hidden) * in_size);
      if (args.weights == nullptr) {
        sum = first ? x : add(sum, x);
      } else {
        const float w =
            decode(args.weights_type, static_cast<const char*>(args.weights) + slot * weight_size);
        sum = first ? multiply(w, x) : std::fmaf(w, x, sum);
      }
      first = false;
    }
    if (args.has_scale) sum = multiply(sum, args.scale);
    encode(args.output_type, sum, output.data() + i * out_size);
  }
  return output;
}

inline std::vector<char> rank_reduce(const kernels::RankReduceArgs& args) {
  const auto size = static_cast<int64_t>(size_of(args.type));
  std::vector<char> output(static_cast<size_t>(args.count * size));
  for (int64_t i = 0; i < args.count; ++i) {
    float sum = 0.0f;
    for (int rank = 0; rank < args.ranks; ++rank) {
      const float x = decode(args.type, static_cast<const char*>(args.sources[rank]) + i * size);
      sum = rank == 0 ? x : add(sum, x);
    }
    encode(args.type, sum, output.data() + i * size);
  }
  return output;
}

// Exactly `size` bytes that start `offset` bytes behind a 64-byte boundary: a sanitizer sees the
// first byte read or written behind them.
class Bytes {
 public:
  explicit Bytes(int64_t size, int64_t offset = 0)
      : size_(size),
        memory_(new (std::align_val_t{64}) char[static_cast<size_t>(offset + size)]),
        begin_(memory_.get() + offset) {}
  char* data() const { return begin_; }
  int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(char* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  int64_t size_;
  std::unique_ptr<char[], Free> memory_;
  char* begin_;
};

// Elements of every kind: any bits at all, moderate values, tiny values and special ones.
inline void fill(const Bytes& bytes, DType type, std::mt19937& random) {
  const auto size = static_cast<int64_t>(size_of(type));
  constexpr float kSpecial[] = {0.0f, -0.0f, 1.0f, -1.0f, 65504.0f, 3.3e38f, -3.3e38f};
  for (int64_t at = 0; at + size <= bytes.size(); at += size) {
    const uint32_t bits = random();
    const uint32_t kind = random() % 16;
    float value;
    if (kind < 3) {
      std::memcpy(bytes.data() + at, &bits, static_cast<size_t>(size));
      continue;
    }
    if (kind < 11) {
      value = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-30f;
    } else if (kind < 14) {  // subnormal of this type, or just above
      const uint32_t tiny = bits & (size == 4                 ? 0x80ffffffu
                                    : type == DType::kFloat16 ? 0x87ffu
                                                              : 0x80ffu);
      std::memcpy(bytes.data() + at, &tiny, static_cast<size_t>(size));
      continue;
    } else if (kind < 15) {
      value = kSpecial[bits % std::size(kSpecial)];
    } else {
      value = (bits & 1) != 0 ? std::numeric_limits<float>::infinity()
                              : -std::numeric_limits<float>::infinity();
      if (bits % 8 < 4) value = 2.0f;
    }
    encode(type, value, bytes.data() + at);
  }
}

// Position of the first element that differs, or -1. A bfloat16 NaN has one encoding only.
inline int64_t first_difference(DType type, const char* got, const std::vector<char>& want) {
  const auto size = static_cast<int64_t>(size_of(type));
  for (int64_t at = 0; at < static_cast<int64_t>(want.size()); at += size) {
    if (std::memcmp(got + at, want.data() + at, static_cast<size_t>(size)) == 0) continue;
    const bool both_nan =
        std::isnan(decode(type, got + at)) && std::isnan(decode(type, want.data() + at));
    if (both_nan && type != DType::kBFloat16) continue;
    return at / size;
  }
  return -1;
}

}  // namespace symmoe::reference
