#pragma once

// peer_call.h without one of its barriers of the block: SYMMOE_WITHOUT_SYNC says which, from 1 on.

#include "kernels/device/launch.h"
#include "kernels/device/mixed.h"
#include "kernels/device/report.h"

#if defined(SYMMOE_PLANT)
namespace symmoe::kernels::SYMMOE_PLATFORM::dev {
constexpr int kBeforeFirst = __COUNTER__;
template <int kNumber>
void sync_numbered() {
  if constexpr (kNumber != kBeforeFirst + SYMMOE_WITHOUT_SYNC) emulator::sync_block();
}
}  // namespace symmoe::kernels::SYMMOE_PLATFORM::dev
#define sync_block sync_numbered<__COUNTER__>
#endif

#include "kernels/device/peer_call.h"

#undef sync_block
