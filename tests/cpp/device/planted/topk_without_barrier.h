#pragma once

// The top-k kernel's own source without one of its two barriers: SYMMOE_WITHOUT_BARRIER is 0 for
// the one before the table of slots is written, 1 for the one before it is read.

#include "kernels/device/row_shares.h"  // whose barriers do not count
#include "one_kernel.h"

#if defined(SYMMOE_PLANT)
namespace symmoe::kernels::SYMMOE_PLATFORM::dev {
template <int kNumber>
void sync_numbered() {
  if constexpr (kNumber != SYMMOE_WITHOUT_BARRIER) emulator::sync_block();
}
}  // namespace symmoe::kernels::SYMMOE_PLATFORM::dev
#define sync_block sync_numbered<__COUNTER__>
#endif

#include "kernels/device/topk_kernel.h"

inline int run_topk() {
  using namespace symmoe;
  std::vector<uint16_t> input(4 * 3 * 512, 0x3f80);
  std::vector<uint16_t> output(4 * 512);
  kernels::TopkReduceLaunch launch;
  launch.input = input.data();
  launch.output = output.data();
  launch.tokens = 4;
  launch.slots = 3;
  launch.hidden = 512;
  emulator::options().seed = 1;
  // One block, so that it sums all tokens.
  using Columns = kernels::SYMMOE_PLATFORM::WideColumns<DType::kBFloat16, DType::kBFloat16>;
  return dev::launch(kernels::SYMMOE_PLATFORM::topk_reduce<Columns, 0>, 1, 64, nullptr, launch, 1);
}
