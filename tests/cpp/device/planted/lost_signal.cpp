// The bug: a kernel waits for a flag that nobody sets.

#include "one_kernel.h"

__global__ void wait_for_flag(uint32_t* flag) {
#ifndef SYMMOE_PLANT
  if (dev::thread() == 1) dev::publish(flag, 1);
#endif
  if (dev::thread() != 0) return;
  while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0) symmoe::emulator::spin();
}

int main() {
  symmoe::emulator::options().spin_timeout_ms = 300;
  uint32_t flag = 0;
  return dev::launch(wait_for_flag, 1, 32, nullptr, &flag);
}
