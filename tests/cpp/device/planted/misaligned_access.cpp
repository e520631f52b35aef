// The bug: a 16-byte load of an address that is a multiple of 8 only.

#include "one_kernel.h"

__global__ void copy(const char* input, char* output) {
#ifdef SYMMOE_PLANT
  constexpr int kOffset = 8;
#else
  constexpr int kOffset = 16;
#endif
  dev::store16(output, dev::load16(input + kOffset));
}

int main() {
  alignas(16) char input[32] = {};
  alignas(16) char output[16];
  return dev::launch(copy, 1, 1, nullptr, input, output);
}
