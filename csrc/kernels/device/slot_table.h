#pragma once

#include "kernels/device/dev.h"
#include "kernels/device/elements.h"
#include "kernels/device/expert_rank.h"
#include "kernels/device/launch.h"
#include "kernels/device/report.h"

// Which rows a token's sum consists of: looked up once by the block, then read by all its threads.
namespace symmoe::kernels::SYMMOE_PLATFORM {

struct alignas(16) Slot {
  const char* row;  // null: absent
  float weight;
};

template <int kCount>
struct SlotTable {
  Slot slot[kCount];
};

SYMMOE_DEVICE float weight_at(const TopkReduceLaunch& problem, int64_t position) {
  if (problem.weights == nullptr) return 1.0f;  // fma(1, x, sum) is sum + x
  const char* const weights = static_cast<const char*>(problem.weights);
  if (problem.weights_type == DType::kFloat32) {
    return dev::load_read_only<float>(weights + position * kBytes<DType::kFloat32>);
  }
  const auto bits = dev::load_read_only<uint16_t>(weights + position * kBytes<DType::kFloat16>);
  return problem.weights_type == DType::kBFloat16 ? decode<DType::kBFloat16>(bits)
                                                  : decode<DType::kFloat16>(bits);
}

template <DType kIn>
SYMMOE_DEVICE Slot find_slot(const TopkReduceLaunch& problem, int64_t token, int64_t slot) {
  const Slot absent = {nullptr, 1.0f};
  if (slot >= problem.slots) return absent;
  const int64_t position = token * problem.slots + slot;
  if (!is_own(problem.routing, position)) return absent;
  int64_t row = position;
  if (problem.index != nullptr) {
    row = integer_at(problem.index, problem.index_is_64bit, position);
    if (row < -1 || row >= problem.pairs) {
      report(problem.fault, Fault::kIndexOutOfRange, token, slot, row);
    }
    if (row < 0 || row >= problem.pairs) return absent;
  }
  return {static_cast<const char*>(problem.input) + row * problem.hidden * kBytes<kIn>,
          weight_at(problem, position)};
}

}  // namespace symmoe::kernels::SYMMOE_PLATFORM
