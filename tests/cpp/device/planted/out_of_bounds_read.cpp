// The bug: a kernel reads one element behind the end of global memory.

#include "one_kernel.h"

__global__ void add_neighbour(const int32_t* input, int32_t* output, unsigned count) {
  const unsigned i = dev::thread();
#ifdef SYMMOE_PLANT
  const unsigned next = i + 1;
#else
  const unsigned next = i + 1 < count ? i + 1 : i;
#endif
  if (i >= count) return;
  dev::store(output + i, dev::load<int32_t>(input + i) + dev::load<int32_t>(input + next));
}

// With an argument: the memory is declared, so that the emulator itself knows its bounds.
int main(int argc, char**) {
  using namespace symmoe;
  std::vector<int32_t> input(40, 1);
  std::vector<int32_t> output(40);
  if (argc > 1) {
    emulator::declare_memory(input.data(), 160, emulator::Permission::kRead);
    emulator::declare_memory(output.data(), 160, emulator::Permission::kWrite);
  }
  return dev::launch(add_neighbour, 1, 64, nullptr, input.data(), output.data(), 40u);
}
