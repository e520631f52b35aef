#pragma once

#include <cstdint>

// What the environment sets: read when the library is loaded and by symmoe_fake_nccl_reset().
namespace symmoe::fake {

int version();         // SYMMOE_FAKE_NCCL_VERSION: what ncclGetVersion says, 23007 by default
int64_t timeout_ns();  // SYMMOE_FAKE_NCCL_TIMEOUT: seconds that a rank waits for another, 20
bool instant();        // SYMMOE_FAKE_NCCL_INSTANT: collectives do nothing, for measuring hosts

// ... and SYMMOE_FAKE_NCCL_FAIL, the failures to inject. Ends the process if that makes no sense.
void read_environment();

}  // namespace symmoe::fake
