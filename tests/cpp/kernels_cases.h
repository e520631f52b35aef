#pragma once

// One call of a kernel with its memory, checked against the reference.

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/cpu/kernels.h"
#include "kernels_reference.h"

namespace symmoe::reference {

using kernels::RankReduceArgs;
using kernels::TopkReduceArgs;
inline constexpr DType kTypes[] = {DType::kBFloat16, DType::kFloat16, DType::kFloat32};
inline constexpr char kGuard = 0x5a;
inline constexpr int64_t kGuardBytes = 128;

// The output between guard bytes.
class GuardedOutput {
 public:
  GuardedOutput(int64_t size, int64_t offset) : bytes_(size + 2 * kGuardBytes, offset) {}
  char* data() const { return bytes_.data() + kGuardBytes; }
  void clear() const { std::memset(bytes_.data(), kGuard, static_cast<size_t>(bytes_.size())); }
  bool guards_untouched() const {
    const auto is_guard = [](char c) { return c == kGuard; };
    const char* end = bytes_.data() + bytes_.size();
    return std::all_of(bytes_.data(), data(), is_guard) &&
           std::all_of(end - kGuardBytes, end, is_guard);
  }
  bool untouched() const {
    return std::all_of(bytes_.data(), bytes_.data() + bytes_.size(),
                       [](char c) { return c == kGuard; });
  }

 private:
  Bytes bytes_;
};

struct TopkCase {
  TopkReduceArgs args;
  Bytes input;
  Bytes weights;
  Bytes index;
  GuardedOutput output;

  TopkCase(const TopkReduceArgs& shape, bool weighted, bool indexed, int64_t offset,
           std::mt19937& random)
      : args(shape),
        input((indexed ? args.pairs : args.tokens * args.slots) * args.hidden *
                  static_cast<int64_t>(size_of(args.input_type)),
              offset),
        weights(args.tokens * args.slots * static_cast<int64_t>(size_of(args.weights_type)),
                offset / 2),
        index(args.tokens * args.slots * (args.index_is_64bit ? 8 : 4), offset / 3),
        output(args.tokens * args.hidden * static_cast<int64_t>(size_of(args.output_type)),
               offset) {
    fill(input, args.input_type, random);
    fill(weights, args.weights_type, random);
    args.input = input.data();
    args.output = output.data();
    if (weighted) args.weights = weights.data();
    if (indexed) args.index = index.data();
    for (int64_t i = 0; i < args.tokens * args.slots; ++i) {
      const bool absent = i / args.slots == 1 || random() % 4 == 0 || args.pairs == 0;
      set_index(i,
                absent ? -1 : static_cast<int64_t>(random() % static_cast<uint64_t>(args.pairs)));
    }
  }

  void set_index(int64_t position, int64_t value) const {
    if (args.index_is_64bit) {
      std::memcpy(index.data() + position * 8, &value, 8);
    } else {
      const auto narrow = static_cast<int32_t>(value);
      std::memcpy(index.data() + position * 4, &narrow, 4);
    }
  }

  std::string describe() const {
    return std::string(kernels::isa_name()) + " " + name_of(args.input_type) + " -> " +
           name_of(args.output_type) + ", weights " +
           (args.weights == nullptr ? "none" : name_of(args.weights_type)) + ", index " +
           (args.index == nullptr ? "none"
            : args.index_is_64bit ? "int64"
                                  : "int32") +
           ", " + std::to_string(args.tokens) + "x" + std::to_string(args.slots) + "x" +
           std::to_string(args.hidden);
  }

  void check(const std::vector<char>& want, int threads) const {
    output.clear();
    kernels::topk_reduce(args, threads);
    const int64_t at = first_difference(args.output_type, output.data(), want);
    CHECK_MSG(at == -1, describe() + " at " + std::to_string(at));
    CHECK_MSG(output.guards_untouched(), describe());
  }
};

template <typename Body>
void for_each_isa(Body body) {
  const std::string before = kernels::isa_name();
  for (const std::string& isa : kernels::available_isas()) {
    kernels::set_isa(isa);
    body();
  }
  kernels::set_isa(before);
}

struct RankCase {
  RankReduceArgs args;
  std::vector<Bytes> inputs;
  std::vector<const void*> sources;
  GuardedOutput output;

  RankCase(DType type, int ranks, int64_t count, int64_t offset, std::mt19937& random)
      : output(count * static_cast<int64_t>(size_of(type)), offset) {
    for (int rank = 0; rank < ranks; ++rank) {
      inputs.emplace_back(count * static_cast<int64_t>(size_of(type)), (offset * rank) % 64);
      fill(inputs.back(), type, random);
      sources.push_back(inputs.back().data());
    }
    args = {sources.data(), ranks, output.data(), count, type};
  }

  void check(const std::vector<char>& want, int threads) const {
    output.clear();
    kernels::rank_reduce(args, threads);
    const int64_t at = first_difference(args.type, output.data(), want);
    const std::string what = std::string(kernels::isa_name()) + " " + name_of(args.type) + " " +
                             std::to_string(args.ranks) + " ranks, count " +
                             std::to_string(args.count) + ", at " + std::to_string(at);
    CHECK_MSG(at == -1, what);
    CHECK_MSG(output.guards_untouched(), what);
  }
};

}  // namespace symmoe::reference
