#pragma once

#include "backends/gpu/gpu_api.h"
#include "runtime/device_table.h"

namespace symmoe::gpu {

// The table's status for the runtime's error code, which is remembered for text_of. The runtime
// forgets the error: what is wrong for good comes back with the next call.
int status_of(Error error);

// Text of a status that the calling thread had last.
const char* text_of(int status);

}  // namespace symmoe::gpu
