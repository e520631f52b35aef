// The bug: with sizes that live on the device, a rank minds its own one only.

#include "kernels/device/dev.h"

#ifdef SYMMOE_PLANT
namespace symmoe::kernels::SYMMOE_PLATFORM::dev {
inline bool all_is_well(bool mine) {
  emulator::sync_block_and(mine);
  return true;
}
}  // namespace symmoe::kernels::SYMMOE_PLATFORM::dev
#define sync_block_and all_is_well
#endif

#include "pulling.h"

// The kernel reports the sizes and leaves the output alone, so that no sum is what the run wants.
int main() {
  // The second rank's share fits, but would begin one row before the window.
  const std::vector<int32_t> sizes = {-1, 2};
  pulling::run({.calls = 1, .change = [&](symmoe::kernels::PullLaunch& launch) {
                  launch.shares.sizes = sizes.data();
                  launch.shares.rows = 4;
                  launch.shares.output_rows = 2;
                }});
  return 0;
}
