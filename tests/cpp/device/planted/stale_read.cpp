// The bug: a read-only load, which a cache may answer, of memory that peers write.

#include "one_kernel.h"

__global__ void copy(const int32_t* from_peer, int32_t* output) {
#ifdef SYMMOE_PLANT
  dev::store(output, dev::load_read_only<int32_t>(from_peer));
#else
  dev::store(output, dev::load<int32_t>(from_peer));
#endif
}

int main() {
  using namespace symmoe;
  int32_t from_peer = 1;
  int32_t output;
  emulator::declare_memory(&from_peer, 4, emulator::Permission::kReadPeersWrite);
  emulator::declare_memory(&output, 4, emulator::Permission::kWrite);
  return dev::launch(copy, 1, 1, nullptr, &from_peer, &output);
}
