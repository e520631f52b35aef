#pragma once

#include <memory>

#include "fake_nccl/communicator.h"
#include "fake_nccl/operation.h"

namespace symmoe::fake {

// Calls of one thread between ncclGroupStart and ncclGroupEnd are queued together at the end. All
// of these throw Refusal.
void start_group();
// If a call of the group was refused, nothing of it is queued.
void end_group();
bool in_group();
void note_refusal_in_group(const Refusal& refusal);

// Queues the operation on the stream, or adds it to the calling thread's group.
void submit(const std::shared_ptr<Communicator>& communicator, Operation operation, void* stream);

}  // namespace symmoe::fake
