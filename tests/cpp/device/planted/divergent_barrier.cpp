// The bug: half of the threads wait at a barrier of their own.

#include "one_kernel.h"

__global__ void wait_somewhere(int32_t* output) {
#ifdef SYMMOE_PLANT
  if (dev::thread() % 2 == 0) {
    dev::sync_block();
  } else {
    dev::store(output + dev::thread(), 1);
    dev::sync_block();
  }
#else
  if (dev::thread() % 2 != 0) dev::store(output + dev::thread(), 1);
  dev::sync_block();
#endif
}

int main() {
  std::vector<int32_t> output(64);
  return dev::launch(wait_somewhere, 1, 64, nullptr, output.data());
}
