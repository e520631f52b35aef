// Groups, collectives and messages in NCCL's C interface.

#include "fake_nccl/api.h"
#include "fake_nccl/call.h"
#include "fake_nccl/group.h"
#include "fake_nccl/operation.h"
#include "fake_nccl/settings.h"

using namespace symmoe;
using namespace symmoe::fake;

namespace {

constexpr int kPendingAnswers = 3;

Operation new_operation(Kind kind, const char* name, const void* send, void* receive, size_t count,
                        NcclDataType type) {
  Operation operation;
  operation.kind = kind;
  operation.name = name;
  operation.send = static_cast<const std::byte*>(send);
  operation.receive = static_cast<std::byte*>(receive);
  operation.count = count;
  operation.type = type;
  return operation;
}

// The failures that befall the queued work go with it.
bool of_queued_work(const Failure& failure) {
  return failure.action == Failure::Action::kDelay || failure.action == Failure::Action::kHang ||
         failure.action == Failure::Action::kAsync;
}

// Whether the call says that it is still in progress.
bool enter(NcclComm comm, Operation operation, NcclStream stream) {
  const std::shared_ptr<Communicator> communicator = communicators().at(comm);
  Presence& presence = communicator->presence;
  set_current_rank(presence.rank());
  const Failure failure = next_failure(operation.name, presence.rank());
  if (!of_queued_work(failure)) carry_out(failure, operation.name, &presence);
  operation.failure = of_queued_work(failure) ? failure : Failure();
  presence.require_working();
  require_valid(operation, presence.rank(), presence.world());
  const bool pending = failure.action == Failure::Action::kPending;
  if (pending) communicator->pending = kPendingAnswers;
  // As in NCCL, an empty message is none.
  if (operation.message() && operation.count == 0) return pending;
  submit(communicator, std::move(operation), stream);
  return pending;
}

NcclResult queue(NcclComm comm, const Operation& operation, NcclStream stream) {
  bool pending = false;
  const NcclResult result = call(operation.name, [&] {
    try {
      pending = enter(comm, operation, stream);
    } catch (const Refusal& refusal) {
      if (in_group()) note_refusal_in_group(refusal);
      throw;
    }
  });
  return pending ? kNcclInProgress : result;
}

}  // namespace

NcclResult ncclGroupStart() { return call("ncclGroupStart", start_group); }

NcclResult ncclGroupEnd() { return call("ncclGroupEnd", end_group); }

NcclResult ncclReduceScatter(const void* send, void* receive, size_t count, NcclDataType type,
                             NcclRedOp op, NcclComm comm, NcclStream stream) {
  if (instant()) return kNcclSuccess;
  Operation operation =
      new_operation(Kind::kReduceScatter, "ncclReduceScatter", send, receive, count, type);
  operation.red_op = op;
  return queue(comm, operation, stream);
}

NcclResult ncclAllGather(const void* send, void* receive, size_t count, NcclDataType type,
                         NcclComm comm, NcclStream stream) {
  if (instant()) return kNcclSuccess;
  return queue(comm, new_operation(Kind::kAllGather, "ncclAllGather", send, receive, count, type),
               stream);
}

NcclResult ncclAllReduce(const void* send, void* receive, size_t count, NcclDataType type,
                         NcclRedOp op, NcclComm comm, NcclStream stream) {
  if (instant()) return kNcclSuccess;
  Operation operation =
      new_operation(Kind::kAllReduce, "ncclAllReduce", send, receive, count, type);
  operation.red_op = op;
  return queue(comm, operation, stream);
}

NcclResult ncclReduce(const void* send, void* receive, size_t count, NcclDataType type,
                      NcclRedOp op, int root, NcclComm comm, NcclStream stream) {
  if (instant()) return kNcclSuccess;
  Operation operation = new_operation(Kind::kReduce, "ncclReduce", send, receive, count, type);
  operation.red_op = op;
  operation.root = root;
  return queue(comm, operation, stream);
}

NcclResult ncclBroadcast(const void* send, void* receive, size_t count, NcclDataType type, int root,
                         NcclComm comm, NcclStream stream) {
  if (instant()) return kNcclSuccess;
  Operation operation =
      new_operation(Kind::kBroadcast, "ncclBroadcast", send, receive, count, type);
  operation.root = root;
  return queue(comm, operation, stream);
}

NcclResult ncclSend(const void* send, size_t count, NcclDataType type, int peer, NcclComm comm,
                    NcclStream stream) {
  if (instant()) return kNcclSuccess;
  Operation operation = new_operation(Kind::kSend, "ncclSend", send, nullptr, count, type);
  operation.root = peer;
  return queue(comm, operation, stream);
}

NcclResult ncclRecv(void* receive, size_t count, NcclDataType type, int peer, NcclComm comm,
                    NcclStream stream) {
  if (instant()) return kNcclSuccess;
  Operation operation = new_operation(Kind::kReceive, "ncclRecv", nullptr, receive, count, type);
  operation.root = peer;
  return queue(comm, operation, stream);
}
