#pragma once

// Rows that go through an epilogue by the kernel's own source: to be included behind whatever
// changes a word of it. The device says that fewer rows are there than there is room for.

#include <cmath>
#include <cstdio>
#include <random>

#include "kernels/device/apply_epilogue.cu"
#include "one_kernel.h"

namespace finishing {

using namespace symmoe;

constexpr int64_t kHidden = 272;
constexpr int64_t kRoom = 48;
constexpr int32_t kOwn = 40;

// The steps as they are documented: x = residual = residual + x; its norm; as bytes with a scale.
struct Rows {
  std::vector<float> input = std::vector<float>(kRoom * kHidden);
  std::vector<float> residual = input;
  std::vector<float> weight = std::vector<float>(kHidden, 1.0f);
  std::vector<float> scales = std::vector<float>(kRoom, -1.0f);
  std::vector<int8_t> output = std::vector<int8_t>(kRoom * kHidden, 77);

  Rows() {
    std::mt19937 random(5);
    const auto fill = [&](std::vector<float>& numbers) {
      for (float& number : numbers) {  // of all sizes, so that the order of additions shows
        const float wide = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-30f;
        number = wide * wide * wide * wide * wide;
      }
    };
    fill(input);
    fill(residual);
  }

  void finish() {
    for (size_t row = 0; row < kOwn; ++row) {
      float* const x = residual.data() + row * kHidden;
      std::vector<float> lanes(64, 0.0f);
      for (size_t column = 0; column < kHidden; ++column) {
        x[column] += input[row * kHidden + column];
        const float square = x[column] * x[column];
        lanes[column % 64] += square;
      }
      for (size_t half = 32; half > 0; half /= 2) {
        for (size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
      }
      const float mean = lanes[0] / static_cast<float>(kHidden);
      const float factor = 1.0f / std::sqrt(mean + 1e-6f);
      float largest = 0.0f;
      for (size_t column = 0; column < kHidden; ++column) {
        largest = std::fmax(largest, std::fabs(x[column] * factor));
      }
      scales[row] = largest / 127.0f;
      for (size_t column = 0; column < kHidden; ++column) {
        const float normed = x[column] * factor;
        const float scaled = normed * (1.0f / scales[row]);
        output[row * kHidden + column] = static_cast<int8_t>(std::nearbyint(scaled));
      }
    }
  }
};

// The exit status. Races are the sanitizer's to report, but wrong rows count as well.
inline int run() {
  Rows want;
  want.finish();
  Rows got;
  const std::vector<int32_t> sizes = {kOwn};
  kernels::EpilogueLaunch launch;
  launch.input = got.input.data();
  launch.output = got.output.data();
  launch.rows = kRoom;
  launch.hidden = kHidden;
  launch.type = DType::kFloat32;
  launch.steps.residual = got.residual.data();
  launch.steps.norm_weight = got.weight.data();
  launch.steps.scales = got.scales.data();
  launch.steps.eps = 1e-6f;
  launch.steps.weight_type = DType::kFloat32;
  launch.steps.quantized = kernels::Quantized::kInt8;
  launch.shares.sizes = sizes.data();
  launch.shares.rows = launch.shares.output_rows = kRoom;
  emulator::options().seed = 1;
  // Few blocks, so that each has several rows.
  using Columns = kernels::SYMMOE_PLATFORM::WideColumns<DType::kFloat32, DType::kFloat32>;
  dev::launch(kernels::SYMMOE_PLATFORM::apply_epilogue<Columns>, 2, 64, nullptr, launch);
  int wrong = 0;
  for (size_t row = 0; row < kRoom; ++row) {
    const auto differ = [&](const auto& a, const auto& b, size_t count) {
      return !std::equal(a.begin() + static_cast<ptrdiff_t>(row * count),
                         a.begin() + static_cast<ptrdiff_t>((row + 1) * count),
                         b.begin() + static_cast<ptrdiff_t>(row * count));
    };
    wrong += differ(got.residual, want.residual, kHidden) ||
             differ(got.output, want.output, kHidden) || differ(got.scales, want.scales, 1);
  }
  std::printf("%d wrong rows\n", wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace finishing
