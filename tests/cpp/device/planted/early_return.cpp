// The bug: threads without work return before a barrier that the others reach.

#include "one_kernel.h"

__global__ void leave_early(int32_t* output, unsigned count) {
#ifdef SYMMOE_PLANT
  if (dev::thread() >= count) return;
#endif
  dev::sync_block();
  if (dev::thread() < count) dev::store(output + dev::thread(), 1);
}

int main() {
  std::vector<int32_t> output(40);
  return dev::launch(leave_early, 1, 64, nullptr, output.data(), 40u);
}
