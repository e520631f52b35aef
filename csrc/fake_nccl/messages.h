#pragma once

#include <vector>

#include "fake_nccl/operation.h"
#include "fake_nccl/presence.h"

namespace symmoe::fake {

// Does all sends and receives of a group together, so that their order does not matter; those
// between the same two ranks stay in order. Ends when the peers have taken what was sent, as large
// messages do in NCCL. Throws Refusal if a message is not what its receiver waits for.
void exchange_messages(Presence& presence, const std::vector<const Operation*>& operations);

}  // namespace symmoe::fake
