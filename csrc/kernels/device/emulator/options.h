#pragma once

#include <cstdint>

namespace symmoe::emulator {

// How kernels run. To be changed while none does. The environment sets the start values:
// SYMMOE_EMULATOR_SEED, SYMMOE_EMULATOR_CO_RESIDENT (0 or 1), SYMMOE_EMULATOR_SPIN_TIMEOUT_MS.
struct Options {
  // Which thread goes on when several could: 0, each in turn; else any, by this seed. Blocks run
  // in turn, or, by odd seeds, from the last to the first.
  uint64_t seed = 0;
  // Blocks run at the same time, on a thread each, as kernels that wait for other blocks need it;
  // otherwise one after the other.
  bool co_resident = false;
  // A block whose threads do nothing but wait for so long is reported.
  int64_t spin_timeout_ms = 20'000;
};

Options& options();

}  // namespace symmoe::emulator
