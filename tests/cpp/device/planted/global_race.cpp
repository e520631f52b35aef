// The bug: two threads of a block pass a value through global memory without a barrier.

#include "one_kernel.h"

__global__ void reverse(int32_t* scratch, int32_t* output) {
  dev::store(scratch + dev::thread(), static_cast<int32_t>(dev::thread()));
#ifndef SYMMOE_PLANT
  dev::sync_block();
#endif
  dev::store(output + dev::thread(),
             dev::load<int32_t>(scratch + dev::threads() - 1 - dev::thread()));
}

int main() {
  std::vector<int32_t> scratch(64);
  std::vector<int32_t> output(64);
  return dev::launch(reverse, 1, 64, nullptr, scratch.data(), output.data());
}
