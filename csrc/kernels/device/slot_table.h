#pragma once

#include "kernels/device/dev.h"
#include "kernels/device/elements.h"
#include "kernels/device/launch.h"

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

// Only the first fault is kept; one that comes while another is being written is dropped.
SYMMOE_DEVICE void report_index(Fault* fault, int64_t token, int64_t slot, int64_t value) {
  if (fault == nullptr || !dev::claim(&fault->being_written)) return;
  if (dev::peek(&fault->kind) == Fault::kNone) {
    dev::store(&fault->subject, token);
    dev::store(&fault->detail, slot);
    dev::store(&fault->value, value);
    dev::publish(&fault->kind, Fault::kIndexOutOfRange);
  }
  dev::publish(&fault->being_written, 0);
}

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

SYMMOE_DEVICE int64_t index_at(const TopkReduceLaunch& problem, int64_t position) {
  const char* const index = static_cast<const char*>(problem.index);
  if (problem.index_is_64bit) return dev::load_read_only<int64_t>(index + position * 8);
  return dev::load_read_only<int32_t>(index + position * 4);
}

template <DType kIn>
SYMMOE_DEVICE Slot find_slot(const TopkReduceLaunch& problem, int64_t token, int64_t slot) {
  const Slot absent = {nullptr, 1.0f};
  if (slot >= problem.slots) return absent;
  const int64_t position = token * problem.slots + slot;
  int64_t row = position;
  if (problem.index != nullptr) {
    row = index_at(problem, position);
    if (row < -1 || row >= problem.pairs) report_index(problem.fault, token, slot, row);
    if (row < 0 || row >= problem.pairs) return absent;
  }
  return {static_cast<const char*>(problem.input) + row * problem.hidden * kBytes<kIn>,
          weight_at(problem, position)};
}

}  // namespace symmoe::kernels::SYMMOE_PLATFORM
