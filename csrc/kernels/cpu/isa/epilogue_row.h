// The sum of a row with what comes behind it: steps that add to it and scale it, and its norm.
#pragma once

#include "kernels/cpu/isa/rank_row.h"

namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE {
namespace {

// As an element of this type holds it.
template <DType kType>
SYMMOE_INLINE Pair rounded(Pair pair) {
  char block[kBlock * kSize<kType>];
  store<kType, kType, false>(block, pair);
  return load<kType>(block);
}

// The sum of squares of a row. Partial sums by column mod kSquareLanes, whatever the width of the
// vectors, so that the additions are the same ones on every processor.
template <DType kType>
struct Squares {
  static constexpr int kPairs = kSquareLanes / kBlock;
  static_assert(kPairs * kBlock == kSquareLanes);

  Pair lanes[kPairs];

  SYMMOE_INLINE void clear() {
    for (Pair& pair : lanes) pair = {splat(0.0f), splat(0.0f)};
  }
  SYMMOE_INLINE void add_to(int p, Pair x) {
    lanes[p] = {add(lanes[p].first, mul(x.first, x.first)),
                add(lanes[p].second, mul(x.second, x.second))};
  }
  // Lane j and lane j + half, halving, down to one.
  SYMMOE_INLINE float total() const {
    float all[kSquareLanes];
    char* to = reinterpret_cast<char*>(all);
    for (const Pair& pair : lanes) {
      store<DType::kFloat32, kType, false>(to, pair);
      to += kBlock * sizeof(float);
    }
    for (int half = kSquareLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) all[lane] += all[lane + half];
    }
    return all[0];
  }
};

// kRanks is the number of sources, or 0 if it is only known at run time.
template <DType kType, int kRanks>
struct RowStepsKernel {
  // A copy of the addresses cannot alias the output, so they stay in registers.
  const char* sources[kRanks > 0 ? kRanks : 1];
  const char* const* all_sources;
  int ranks;
  const char* shared;
  const char* residual;
  char* output;
  Floats scale;
  bool scale_first;
  bool scale_last;

  static constexpr int64_t kBytes = kBlock * kSize<kType>;

  SYMMOE_INLINE Pair scaled(Pair x) const { return {mul(x.first, scale), mul(x.second, scale)}; }
  SYMMOE_INLINE static Pair sum(Pair a, Pair b) {
    return {add(a.first, b.first), add(a.second, b.second)};
  }

  // `read` gives a block of one of the inputs.
  template <typename Read>
  SYMMOE_INLINE Pair total(const Read& read) const {
    if constexpr (kRanks > 0) {
      Pair x = read(sources[0]);
#pragma GCC unroll 8
      for (int rank = 1; rank < kRanks; ++rank) x = sum(x, read(sources[rank]));
      return x;
    } else {
      Pair x = read(all_sources[0]);
      for (int rank = 1; rank < ranks; ++rank) x = sum(x, read(all_sources[rank]));
      return x;
    }
  }

  // Rounded where another step follows: the last one's rounding is the store's.
  template <typename Read>
  SYMMOE_INLINE Pair steps(const Read& read) const {
    Pair x = total(read);
    if (scale_first) x = scaled(kRanks == 1 ? x : rounded<kType>(x));
    if (shared != nullptr) {
      if (kRanks != 1 || scale_first) x = rounded<kType>(x);
      x = sum(x, read(shared));
    }
    if (scale_last) x = scaled(rounded<kType>(x));
    if (residual != nullptr) x = sum(read(residual), rounded<kType>(x));
    return x;
  }

  SYMMOE_INLINE Pair whole(int64_t offset) const {
    const Pair x = steps([offset](const char* from) { return load<kType>(from + offset); });
    store<kType, kType, false>(output + offset, x);
    return load<kType>(output + offset);
  }
  SYMMOE_INLINE Pair part(int64_t offset, int64_t count) const {
    const Pair x =
        steps([offset, count](const char* from) { return load_part<kType>(from + offset, count); });
    store_part<kType, kType>(output + offset, x, count);
    return load_part<kType>(output + offset, count);
  }

  SYMMOE_INLINE float run(int64_t bytes, const RowAhead& ahead) const {
    constexpr int64_t kPanel = kSquareLanes * kSize<kType>;
    Squares<kType> squares;
    squares.clear();
    int64_t offset = 0;
    for (; offset + kPanel <= bytes; offset += kPanel) {
      for (int row = 0; row < ahead.ranks(); ++row) ahead.template fetch<kPanel>(row, offset);
#pragma GCC unroll 8
      for (int p = 0; p < squares.kPairs; ++p) squares.add_to(p, whole(offset + p * kBytes));
    }
    for (int p = 0; offset < bytes; ++p, offset += kBytes) {
      const int64_t left = bytes - offset;
      squares.add_to(p, left >= kBytes ? whole(offset) : part(offset, left / kSize<kType>));
    }
    return squares.total();
  }
};

template <DType kType, int kRanks>
float row_steps_of(const RowSteps& steps, int64_t hidden) {
  const bool scales = steps.scale != nullptr;
  RowStepsKernel<kType, kRanks> kernel{{},
                                       reinterpret_cast<const char* const*>(steps.sources),
                                       steps.ranks,
                                       static_cast<const char*>(steps.shared),
                                       static_cast<const char*>(steps.residual),
                                       static_cast<char*>(steps.output),
                                       splat(scales ? *steps.scale : 1.0f),
                                       scales && !steps.scale_shared,
                                       scales && steps.scale_shared};
  for (int rank = 0; rank < kRanks; ++rank) kernel.sources[rank] = kernel.all_sources[rank];
  const RowAhead ahead{reinterpret_cast<const char* const*>(steps.ahead), steps.ahead_rows};
  return kernel.run(hidden * kSize<kType>, ahead);
}

template <DType kType>
float row_steps(const RowSteps& steps, int64_t hidden) {
  switch (steps.ranks) {
    case 1:
      return row_steps_of<kType, 1>(steps, hidden);
    case 2:
      return row_steps_of<kType, 2>(steps, hidden);
    case 4:
      return row_steps_of<kType, 4>(steps, hidden);
    default:
      return row_steps_of<kType, 0>(steps, hidden);
  }
}

template <DType kType, DType kWeight>
struct NormKernel {
  const char* row;
  const char* weight;
  char* output;
  Floats factor;

  static constexpr int64_t kBytes = kBlock * kSize<kType>;

  SYMMOE_INLINE Pair normed(Pair x, Pair w) const {
    if constexpr (kSplitsEvenOdd<kType> && !kSplitsEvenOdd<kWeight>) w = even_odd_of(w);
    return {mul(mul(x.first, factor), w.first), mul(mul(x.second, factor), w.second)};
  }

  template <bool kStream>
  SYMMOE_INLINE void range(int64_t column, int64_t end) const {
    for (; column + kBlock <= end; column += kBlock) {
      const Pair x = load<kType>(row + column * kSize<kType>);
      const Pair w = load<kWeight>(weight + column * kSize<kWeight>);
      store<kType, kType, kStream>(output + column * kSize<kType>, normed(x, w));
    }
    if (column < end) {
      const int64_t count = end - column;
      const Pair x = load_part<kType>(row + column * kSize<kType>, count);
      const Pair w = load_part<kWeight>(weight + column * kSize<kWeight>, count);
      store_part<kType, kType>(output + column * kSize<kType>, normed(x, w), count);
    }
  }
};

template <DType kType, DType kWeight>
void norm_row(const NormedRow& norm, int64_t hidden, bool stream) {
  const NormKernel<kType, kWeight> kernel{static_cast<const char*>(norm.row),
                                          static_cast<const char*>(norm.weight),
                                          static_cast<char*>(norm.output), splat(norm.factor)};
  const int64_t head = elements_to_alignment<kType>(kernel.output);
  if (!stream || head < 0 || head + kBlock > hidden) {
    kernel.template range<false>(0, hidden);
    return;
  }
  if (head > 0) kernel.template range<false>(0, head);
  kernel.template range<true>(head, hidden);
}

}  // namespace
}  // namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE
