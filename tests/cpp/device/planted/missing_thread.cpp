// The bug: half of a warp waits for the warp, the other half for the block.

#include "one_kernel.h"

__global__ void wait_for_different_things() {
#ifdef SYMMOE_PLANT
  if (dev::thread() < 16) symmoe::emulator::sync_warp();
#else
  symmoe::emulator::sync_warp();
#endif
  dev::sync_block();
}

int main() { return dev::launch(wait_for_different_things, 1, 64, nullptr); }
