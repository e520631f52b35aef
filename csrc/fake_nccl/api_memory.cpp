// Memory and windows in NCCL's C interface.

#include "fake_nccl/allocation.h"
#include "fake_nccl/api.h"
#include "fake_nccl/call.h"
#include "fake_nccl/group.h"
#include "fake_nccl/log.h"

using namespace symmoe;
using namespace symmoe::fake;

namespace {

constexpr int kMemorySince = nccl_version(2, 19, 1);
constexpr int kWindowsSince = nccl_version(2, 27, 3);
constexpr int kPeerPointersSince = nccl_version(2, 29, 2);

void log_memory(const char* name, const Communicator* communicator, size_t bytes) {
  FakeNcclCall logged = new_call(name);
  logged.communicator = communicator == nullptr ? 0 : communicator->presence.group_number();
  logged.rank = communicator == nullptr ? current_rank() : communicator->presence.rank();
  logged.count = bytes;
  log_call(logged);
}

}  // namespace

NcclResult ncclMemAlloc(void** memory, size_t bytes) {
  return call("ncclMemAlloc", [&] {
    require_version(kMemorySince, "ncclMemAlloc");
    *memory = nullptr;
    carry_out(next_failure("ncclMemAlloc", current_rank()), "ncclMemAlloc", nullptr);
    *memory = allocate(bytes);
    log_memory("ncclMemAlloc", nullptr, bytes);
  });
}

NcclResult ncclMemFree(void* memory) {
  return call("ncclMemFree", [&] {
    require_version(kMemorySince, "ncclMemFree");
    carry_out(next_failure("ncclMemFree", current_rank()), "ncclMemFree", nullptr);
    release(memory);
    log_memory("ncclMemFree", nullptr, 0);
  });
}

NcclResult ncclCommWindowRegister(NcclComm comm, void* memory, size_t bytes, NcclWindow* window,
                                  int flags) {
  const char* const name = "ncclCommWindowRegister";
  return call(name, [&] {
    require_version(kWindowsSince, name);
    *window = nullptr;
    if (in_group()) throw Refusal{kNcclInvalidUsage, "the fake takes no registration in a group"};
    const std::shared_ptr<Communicator> communicator = communicators().at(comm);
    Presence& presence = communicator->presence;
    set_current_rank(presence.rank());
    const Failure failure = next_failure(name, presence.rank());
    carry_out(failure, name, &presence);
    const std::lock_guard lock(communicator->host);
    const std::shared_ptr<Window> made = communicator->windows.add(memory, bytes, flags);
    log_memory(name, communicator.get(), bytes);
    if (failure.action == Failure::Action::kNull) {
      communicator->windows.forget(made.get());
    } else {
      *window = windows().add(made);
    }
  });
}

NcclResult ncclCommWindowDeregister(NcclComm comm, NcclWindow window) {
  const char* const name = "ncclCommWindowDeregister";
  return call(name, [&] {
    require_version(kWindowsSince, name);
    const std::shared_ptr<Communicator> communicator = communicators().at(comm);
    Presence& presence = communicator->presence;
    set_current_rank(presence.rank());
    carry_out(next_failure(name, presence.rank()), name, &presence);
    const std::lock_guard lock(communicator->host);
    const std::shared_ptr<Window> gone = windows().at(window);
    communicator->windows.remove(gone.get());
    windows().remove(window);
    log_memory(name, communicator.get(), gone->bytes);
  });
}

NcclResult ncclGetLsaDevicePointer(NcclWindow window, size_t offset, int peer, void** pointer) {
  const char* const name = "ncclGetLsaDevicePointer";
  return call(name, [&] {
    require_version(kPeerPointersSince, name);
    *pointer = nullptr;
    carry_out(next_failure(name, current_rank()), name, nullptr);
    const std::shared_ptr<Window> found = windows().at(window);
    if (peer < 0 || static_cast<size_t>(peer) >= found->peers.size()) {
      throw Refusal{kNcclInvalidArgument, "there is no rank " + std::to_string(peer)};
    }
    if (offset >= found->bytes) {
      throw Refusal{kNcclInvalidArgument, "offset " + std::to_string(offset) +
                                              " is beyond a window of " +
                                              std::to_string(found->bytes) + " bytes"};
    }
    *pointer = found->peers[static_cast<size_t>(peer)] + offset;
  });
}
