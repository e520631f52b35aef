#pragma once

// epilogue_row.h without one of its barriers of the block: SYMMOE_WITHOUT_SYNC says which, from 1
// on.

#include "kernels/device/row_shares.h"  // whose barriers do not count

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

#include "kernels/device/epilogue_row.h"

#undef sync_block
