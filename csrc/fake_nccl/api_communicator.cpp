// Communicators, errors and versions in NCCL's C interface.

#include "backends/host/host_api.h"
#include "fake_nccl/api.h"
#include "fake_nccl/call.h"
#include "fake_nccl/control.h"
#include "fake_nccl/group.h"
#include "fake_nccl/log.h"
#include "fake_nccl/settings.h"

extern "C" const symmoe::DeviceTable* symmoe_device_table();  // the host back end's

namespace symmoe::fake {
namespace {

void init(NcclComm* comm, int ranks, const NcclUniqueId& id, int rank, const char* name) {
  if (in_group()) throw Refusal{kNcclInvalidUsage, "the fake takes no init in a group"};
  set_current_rank(rank);
  carry_out(next_failure(name, rank), name, nullptr);
  int device = 0;
  symmoe_device_table()->current_device(&device);
  const std::shared_ptr<Communicator> made = Communicator::join(id, rank, ranks, device);
  *comm = communicators().add(made);
  FakeNcclCall logged = new_call("ncclCommInitRank");
  logged.communicator = made->presence.group_number();
  logged.rank = rank;
  logged.count = static_cast<uint64_t>(ranks);
  log_call(logged);
}

// For the end of a communicator: its handle, and a log entry.
void forget(NcclComm comm, const Communicator& ended, const char* name) {
  communicators().remove(comm);
  FakeNcclCall logged = new_call(name);
  logged.communicator = ended.presence.group_number();
  logged.rank = ended.presence.rank();
  log_call(logged);
}

std::shared_ptr<Communicator> entered(NcclComm comm, const char* name) {
  std::shared_ptr<Communicator> communicator = communicators().at(comm);
  Presence& presence = communicator->presence;
  set_current_rank(presence.rank());
  carry_out(next_failure(name, presence.rank()), name, &presence);
  return communicator;
}

}  // namespace
}  // namespace symmoe::fake

using namespace symmoe;
using namespace symmoe::fake;

NcclResult ncclGetVersion(int* version) {
  *version = fake::version();
  return kNcclSuccess;
}

const char* ncclGetErrorString(NcclResult result) {
  switch (result) {
    case kNcclSuccess:
      return "no error";
    case kNcclUnhandledCudaError:
      return "device runtime call failed";
    case kNcclSystemError:
      return "system call failed";
    case kNcclInternalError:
      return "internal failure";
    case kNcclInvalidArgument:
      return "argument is wrong";
    case kNcclInvalidUsage:
      return "usage is wrong";
    case kNcclRemoteError:
      return "another rank ended or is not reachable";
    case kNcclInProgress:
      return "operation goes on";
  }
  return "unknown result";
}

const char* ncclGetLastError(NcclComm comm) {
  if (comm != nullptr) {
    call("ncclGetLastError", [&] {
      // The communicator's own failure, if it has one, is what matters.
      const std::optional<Refusal> failure = communicators().at(comm)->presence.failure();
      if (failure) set_last_message(failure->text);
    });
  }
  return last_message();
}

NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  return call("ncclGetUniqueId", [&] {
    carry_out(next_failure("ncclGetUniqueId", current_rank()), "ncclGetUniqueId", nullptr);
    *id = make_unique_id();
  });
}

NcclResult ncclCommInitRank(NcclComm* comm, int ranks, NcclUniqueId id, int rank) {
  return call("ncclCommInitRank", [&] { init(comm, ranks, id, rank, "ncclCommInitRank"); });
}

NcclResult ncclCommInitRankConfig(NcclComm* comm, int ranks, NcclUniqueId id, int rank, void*) {
  return call("ncclCommInitRankConfig",
              [&] { init(comm, ranks, id, rank, "ncclCommInitRankConfig"); });
}

NcclResult ncclCommDestroy(NcclComm comm) {
  return call("ncclCommDestroy", [&] {
    const std::shared_ptr<Communicator> communicator = entered(comm, "ncclCommDestroy");
    communicator->finish();
    forget(comm, *communicator, "ncclCommDestroy");
  });
}

NcclResult ncclCommAbort(NcclComm comm) {
  return call("ncclCommAbort", [&] {
    const std::shared_ptr<Communicator> communicator = entered(comm, "ncclCommAbort");
    communicator->abort();
    windows().remove_if([](const Window& window) { return window.closed.load(); });
    forget(comm, *communicator, "ncclCommAbort");
  });
}

NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult* result) {
  return call("ncclCommGetAsyncError", [&] {
    const std::shared_ptr<Communicator> communicator = entered(comm, "ncclCommGetAsyncError");
    const std::optional<Refusal> failure = communicator->presence.failure();
    *result = failure ? failure->code : kNcclSuccess;
    if (!failure && communicator->pending > 0) {
      --communicator->pending;
      *result = kNcclInProgress;
    }
  });
}

NcclResult ncclCommCount(NcclComm comm, int* ranks) {
  return call("ncclCommCount", [&] { *ranks = communicators().at(comm)->presence.world(); });
}

NcclResult ncclCommCuDevice(NcclComm comm, int* device) {
  return call("ncclCommCuDevice", [&] { *device = communicators().at(comm)->device; });
}

NcclResult ncclCommUserRank(NcclComm comm, int* rank) {
  return call("ncclCommUserRank", [&] { *rank = communicators().at(comm)->presence.rank(); });
}
