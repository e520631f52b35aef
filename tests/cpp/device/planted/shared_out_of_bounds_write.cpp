// The bug: a kernel writes one element behind the end of a __shared__ variable.

#include "one_kernel.h"

struct Numbers {
  int32_t value[32];
};

__global__ void shift(int32_t* output) {
  SYMMOE_SHARED(Numbers, numbers);
  int32_t* const values = numbers.value;  // a pointer: its bounds are not in its type
#ifdef SYMMOE_PLANT
  const unsigned place = dev::thread() + 1;
#else
  const unsigned place = (dev::thread() + 1) % 32;
#endif
  values[place] = static_cast<int32_t>(dev::thread());
  dev::sync_block();
  dev::store(output + dev::thread(), values[dev::thread()]);
}

int main() {
  std::vector<int32_t> output(32);
  return dev::launch(shift, 1, 32, nullptr, output.data());
}
