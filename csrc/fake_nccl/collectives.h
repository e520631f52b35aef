#pragma once

#include "fake_nccl/operation.h"
#include "fake_nccl/presence.h"

namespace symmoe::fake {

// Does a collective together with the other ranks, in the device lane. Throws Refusal if they do
// not agree on it, or one of them does not come.
void run_collective(Presence& presence, const Operation& operation);

}  // namespace symmoe::fake
