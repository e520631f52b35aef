#pragma once

// The steps of an epilogue one element at a time, and one call of the kernel with its memory.

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/cpu/epilogue.h"
#include "kernels_cases.h"
#include "kernels_reference.h"

namespace symmoe::reference {

using kernels::EpilogueReduceArgs;
using kernels::Quantized;

// The code of the float8_e4m3fn next to a magnitude of at most 448; of two, the even one.
inline int nearest_float8(float magnitude) {
  int best = 0;
  double distance = HUGE_VAL;
  for (int code = 0; code < 0x7f; ++code) {
    const int exponent = code >> 3;
    const int fraction = code & 7;
    const double value =
        exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    const double here = std::fabs(value - double{magnitude});
    if (here < distance || (here == distance && code % 2 == 0)) {
      distance = here;
      best = code;
    }
  }
  return best;
}

inline float round_to(DType type, float value) {
  char element[4];
  encode(type, value, element);
  return decode(type, element);
}

struct EpilogueResult {
  std::vector<char> output;
  std::vector<char> residual;
  std::vector<char> scales;
};

// `row` holds the values of one row, rounded; writes what becomes of it.
inline void finish_row(const EpilogueReduceArgs& args, std::vector<float> x, int64_t row,
                       EpilogueResult& result) {
  const kernels::Epilogue& steps = args.steps;
  const auto size = static_cast<int64_t>(size_of(args.type));
  const auto get = [&](const void* rows, int64_t column) {
    return decode(args.type, static_cast<const char*>(rows) + (row * args.hidden + column) * size);
  };
  const auto each = [&](auto step) {
    for (int64_t column = 0; column < args.hidden; ++column) {
      float& element = x[static_cast<size_t>(column)];
      element = round_to(args.type, step(element, column));
    }
  };
  const auto times = [&](float element, int64_t) { return multiply(element, steps.scale); };
  if (steps.has_scale && !steps.scale_shared) each(times);
  if (steps.shared != nullptr) {
    each([&](float element, int64_t column) { return add(element, get(steps.shared, column)); });
  }
  if (steps.has_scale && steps.scale_shared) each(times);
  if (steps.residual != nullptr) {
    each([&](float element, int64_t column) { return add(get(steps.residual, column), element); });
    for (int64_t column = 0; column < args.hidden; ++column) {
      encode(args.type, x[static_cast<size_t>(column)],
             result.residual.data() + (row * args.hidden + column) * size);
    }
  }
  if (steps.norm_weight != nullptr) {
    std::vector<float> lanes(64, 0.0f);
    for (size_t column = 0; column < x.size(); ++column) {
      lanes[column % 64] = add(lanes[column % 64], multiply(x[column], x[column]));
    }
    for (size_t half = 32; half > 0; half /= 2) {
      for (size_t lane = 0; lane < half; ++lane) lanes[lane] = add(lanes[lane], lanes[lane + half]);
    }
    const float mean = lanes[0] / static_cast<float>(args.hidden);
    const float factor = 1.0f / std::sqrt(mean + steps.eps);
    const auto weight_size = static_cast<int64_t>(size_of(steps.weight_type));
    each([&](float element, int64_t column) {
      const float weight = decode(
          steps.weight_type, static_cast<const char*>(steps.norm_weight) + column * weight_size);
      return multiply(multiply(element, factor), weight);
    });
  }
  char* const output = result.output.data();
  if (steps.quantized == Quantized::kNone) {
    for (int64_t column = 0; column < args.hidden; ++column) {
      encode(args.type, x[static_cast<size_t>(column)],
             output + (row * args.hidden + column) * size);
    }
    return;
  }
  float largest = 0.0f;
  bool finite = true;
  for (const float element : x) {
    finite = finite && std::isfinite(element);
    largest = std::fmax(largest, std::fabs(element));
  }
  const bool whole = steps.quantized == Quantized::kInt8;
  float scale = std::fmax(largest / (whole ? 127.0f : 448.0f), 0x1p-126f);
  if (!finite) scale = std::numeric_limits<float>::quiet_NaN();
  const float inverse = 1.0f / scale;
  for (int64_t column = 0; column < args.hidden; ++column) {
    int code = 0;
    if (finite) {
      const float scaled = multiply(x[static_cast<size_t>(column)], inverse);
      code = whole ? static_cast<int>(std::nearbyint(scaled)) : nearest_float8(std::fabs(scaled));
      if (!whole && std::signbit(scaled)) code |= 0x80;
    }
    output[row * args.hidden + column] = static_cast<char>(code);
  }
  std::memcpy(result.scales.data() + row * 4, &scale, 4);
}

inline EpilogueResult reduce_with_epilogue(const EpilogueReduceArgs& args) {
  const auto size = static_cast<int64_t>(size_of(args.type));
  const auto count = static_cast<size_t>(args.rows * args.hidden);
  EpilogueResult result{
      std::vector<char>(count * args.steps.output_size(args.type)),
      std::vector<char>(args.steps.residual == nullptr ? 0 : count * static_cast<size_t>(size)),
      std::vector<char>(
          args.steps.quantized == Quantized::kNone ? 0 : static_cast<size_t>(args.rows) * 4)};
  for (int64_t row = 0; row < args.rows; ++row) {
    std::vector<const void*> sources;
    for (int rank = 0; rank < args.ranks; ++rank) {
      if (args.masks != nullptr && (args.masks[row] >> rank & 1) == 0) continue;
      sources.push_back(static_cast<const char*>(args.sources[rank]) + row * args.hidden * size);
    }
    std::vector<float> x(static_cast<size_t>(args.hidden), 0.0f);
    if (!sources.empty()) {
      const std::vector<char> sum = rank_reduce({.sources = sources.data(),
                                                 .ranks = static_cast<int>(sources.size()),
                                                 .count = args.hidden,
                                                 .type = args.type});
      for (size_t column = 0; column < x.size(); ++column) {
        x[column] = decode(args.type, sum.data() + static_cast<int64_t>(column) * size);
      }
    }
    finish_row(args, std::move(x), row, result);
  }
  return result;
}

// Which steps there are.
struct StepChoice {
  bool scale = false;
  bool shared = false;
  bool scale_shared = false;
  bool residual = false;
  bool norm = false;
  bool wide_weight = false;
  Quantized quantized = Quantized::kNone;
};

inline std::vector<StepChoice> all_choices() {
  std::vector<StepChoice> choices;
  for (int bits = 0; bits < 64; ++bits) {
    for (const Quantized to : {Quantized::kNone, Quantized::kInt8, Quantized::kFloat8}) {
      const StepChoice choice{.scale = (bits & 1) != 0,
                              .shared = (bits & 2) != 0,
                              .scale_shared = (bits & 4) != 0,
                              .residual = (bits & 8) != 0,
                              .norm = (bits & 16) != 0,
                              .wide_weight = (bits & 32) != 0,
                              .quantized = to};
      if (choice.scale_shared && !choice.scale) continue;
      if (choice.wide_weight && !choice.norm) continue;
      choices.push_back(choice);
    }
  }
  return choices;
}

// Numbers whose rows have a finite norm: moderate, or close to a subnormal.
inline void fill_moderately(const Bytes& bytes, DType type, std::mt19937& random) {
  const auto size = static_cast<int64_t>(size_of(type));
  for (int64_t at = 0; at + size <= bytes.size(); at += size) {
    const float wide = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-30f;
    encode(type, random() % 8 == 0 ? wide * 0x1p-14f : wide, bytes.data() + at);
  }
}

struct EpilogueCase {
  EpilogueReduceArgs args;
  std::vector<Bytes> inputs;
  std::vector<const void*> sources;
  Bytes shared;
  Bytes weight;
  Bytes residual_before;
  GuardedOutput residual;
  GuardedOutput scales;
  GuardedOutput output;

  EpilogueCase(const StepChoice& choice, DType type, int ranks, int64_t rows, int64_t hidden,
               int64_t offset, std::mt19937& random, bool moderate)
      : shared(rows * hidden * static_cast<int64_t>(size_of(type)), offset),
        weight(hidden * (choice.wide_weight ? 4 : static_cast<int64_t>(size_of(type))), offset / 2),
        residual_before(shared.size()),
        residual(shared.size(), offset / 3),
        scales(rows * 4, offset),
        output(rows * hidden *
                   (choice.quantized == Quantized::kNone ? static_cast<int64_t>(size_of(type)) : 1),
               offset) {
    const auto fill_with = [&](const Bytes& bytes, DType of) {
      moderate ? fill_moderately(bytes, of, random) : fill(bytes, of, random);
    };
    for (int rank = 0; rank < ranks; ++rank) {
      inputs.emplace_back(shared.size(), (offset * rank) % 64);
      fill_with(inputs.back(), type);
      sources.push_back(inputs.back().data());
    }
    const DType weight_type = choice.wide_weight ? DType::kFloat32 : type;
    fill_with(shared, type);
    fill_with(residual_before, type);
    fill_with(weight, weight_type);
    args = {.sources = sources.data(),
            .ranks = ranks,
            .output = output.data(),
            .rows = rows,
            .hidden = hidden,
            .type = type,
            .steps = {.shared = choice.shared ? shared.data() : nullptr,
                      .residual = choice.residual ? residual_before.data() : nullptr,
                      .norm_weight = choice.norm ? weight.data() : nullptr,
                      .scale = 2.37f,
                      .eps = 1e-6f,
                      .has_scale = choice.scale,
                      .scale_shared = choice.scale_shared,
                      .weight_type = weight_type,
                      .quantized = choice.quantized}};
  }

  // What is to be run, on a fresh residual.
  EpilogueReduceArgs fresh() {
    output.clear();
    scales.clear();
    residual.clear();
    EpilogueReduceArgs now = args;
    if (args.steps.residual != nullptr) {
      std::memcpy(residual.data(), residual_before.data(),
                  static_cast<size_t>(residual_before.size()));
      now.steps.residual = residual.data();
    }
    if (args.steps.quantized != Quantized::kNone) {
      now.steps.scales = reinterpret_cast<float*>(scales.data());
    }
    return now;
  }
  void run(int threads) { kernels::reduce_with_epilogue(fresh(), threads); }

  // What there is now.
  EpilogueResult result() const {
    const auto copy = [](const GuardedOutput& from, int64_t bytes) {
      return std::vector<char>(from.data(), from.data() + bytes);
    };
    const kernels::Epilogue& steps = args.steps;
    const auto size = static_cast<int64_t>(steps.output_size(args.type));
    return {copy(output, args.rows * args.hidden * size),
            copy(residual, steps.residual == nullptr ? 0 : shared.size()),
            copy(scales, steps.quantized == Quantized::kNone ? 0 : args.rows * 4)};
  }

  void compare(const EpilogueResult& want, const std::string& what) const {
    const bool whole = args.steps.quantized == Quantized::kNone;
    const std::string where = std::string(kernels::isa_name()) + " " + name_of(args.type) + " " +
                              std::to_string(args.rows) + "x" + std::to_string(args.hidden) + " " +
                              what;
    const auto same = [&](const char* name, DType type, const char* got,
                          const std::vector<char>& expected) {
      const int64_t at = first_difference(type, got, expected);
      CHECK_MSG(at == -1, where + ": " + name + " at " + std::to_string(at));
    };
    same("residual", args.type, residual.data(), want.residual);
    same("scales", DType::kFloat32, scales.data(), want.scales);
    if (whole) {
      same("output", args.type, output.data(), want.output);
    } else {
      for (size_t at = 0; at < want.output.size(); ++at) {
        CHECK_MSG(output.data()[at] == want.output[at],
                  where + ": byte " + std::to_string(at) + " is " +
                      std::to_string(output.data()[at]) + ", not " +
                      std::to_string(want.output[at]));
      }
    }
    CHECK_MSG(output.guards_untouched(), where);
    if (!want.residual.empty()) CHECK_MSG(residual.guards_untouched(), where);
    if (!want.scales.empty()) CHECK_MSG(scales.guards_untouched(), where);
  }
};

}  // namespace symmoe::reference
