#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "fake_nccl/presence.h"
#include "fake_nccl/turnstile.h"
#include "fake_nccl/window.h"

namespace symmoe::fake {

// One rank's communicator: what an ncclComm_t stands for.
struct Communicator {
  // Collective. Throws Refusal.
  static std::shared_ptr<Communicator> join(const NcclUniqueId& id, int rank, int world,
                                            int device);

  Communicator(std::shared_ptr<ControlBlock> block, int rank, int world, int device_ordinal)
      : presence(std::move(block), rank, world), device(device_ordinal) {}

  // Waits for queued work. Throws Refusal if windows are left or the work does not end.
  void finish();
  // Queued work ends without doing anything; what is running is over when this returns.
  void abort();

  Presence presence;
  const int device;
  Windows windows{presence};
  std::mutex host;   // one blocking call at a time
  std::mutex queue;  // one piece of queued work at a time
  Turnstile turnstile;
  std::atomic<int> pending = 0;     // times that ncclCommGetAsyncError still says "in progress"
  std::atomic<uint64_t> calls = 0;  // collectives queued outside of graphs
};

}  // namespace symmoe::fake
