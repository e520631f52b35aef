#include "fake_nccl/communicator.h"

#include <string>

#include "fake_nccl/log.h"
#include "fake_nccl/pace.h"
#include "fake_nccl/refusal.h"
#include "fake_nccl/settings.h"

namespace symmoe::fake {

std::shared_ptr<Communicator> Communicator::join(const NcclUniqueId& id, int rank, int world,
                                                 int device) {
  if (world < 1 || world > kMaxRanks || rank < 0 || rank >= world) {
    throw Refusal{kNcclInvalidArgument, "rank " + std::to_string(rank) + " of " +
                                            std::to_string(world) + ": the fake takes 1 to " +
                                            std::to_string(kMaxRanks) + " ranks"};
  }
  auto communicator = std::make_shared<Communicator>(attach(id), rank, world, device);
  Presence& presence = communicator->presence;
  presence.join();
  try {
    Posting posting = new_posting("ncclCommInitRank");
    posting.count = static_cast<uint64_t>(world);
    presence.meet(&Member::host, posting);
    presence.require_agreement(&Member::host);
    presence.meet(&Member::host);
  } catch (const Refusal&) {
    presence.abort();
    retire(id);
    throw;
  }
  retire(id);
  return communicator;
}

void Communicator::finish() {
  if (const size_t left = windows.count(); left > 0) {
    const std::string text = "the communicator of rank " + std::to_string(presence.rank()) +
                             " is to be destroyed with " + std::to_string(left) +
                             " windows still registered";
    log_misuse(text);
    throw Refusal{kNcclInvalidUsage, text};
  }
  Pace pace;
  const int64_t end = now_ns() + timeout_ns();
  while (!turnstile.empty()) {
    if (now_ns() > end) throw Refusal{kNcclInvalidUsage, "queued work does not end"};
    pace.pause();
  }
  presence.leave();
}

void Communicator::abort() {
  presence.abort();
  const std::lock_guard lock(queue);
  windows.clear();
}

}  // namespace symmoe::fake
