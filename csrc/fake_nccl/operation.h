#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fake_nccl/fake_api.h"
#include "fake_nccl/injection.h"
#include "fake_nccl/window.h"
#include "runtime/nccl/abi.h"

namespace symmoe::fake {

enum class Kind { kReduceScatter, kAllGather, kAllReduce, kReduce, kBroadcast, kSend, kReceive };

// One call that queues work, as the host made it, with what it found out at that moment.
struct Operation {
  Kind kind = Kind::kSend;
  const char* name = "";  // "ncclSend"
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
  size_t count = 0;  // as in the call
  NcclDataType type = kNcclFloat32;
  NcclRedOp red_op = kNcclSum;
  int root = -1;  // or peer
  Failure failure;

  FakeNcclKernel kernel = kFakeNcclOrdinary;
  uint64_t call = 0;  // of the collectives of this communicator; 0 in a graph
  uint64_t position = 0;
  uint64_t operations = 1;         // collectives in its group
  std::shared_ptr<Window> window;  // of a symmetric kernel
  bool ordinary_receive = false;
  std::vector<std::shared_ptr<Allocation>> allocations;  // that it reads or writes

  bool message() const { return kind == Kind::kSend || kind == Kind::kReceive; }
  bool reduces() const {
    return kind == Kind::kReduceScatter || kind == Kind::kAllReduce || kind == Kind::kReduce;
  }
};

// The call's arguments are right for this communicator. Throws Refusal.
void require_valid(const Operation& operation, int rank, int world);

// Looks up what memory the operation is about and chooses its kernel as NCCL does: by the window
// that the pointers start in. `alone`: no other collective is in its group. Throws Refusal.
void choose_kernel(Operation& operation, const Windows& windows, int rank, int world, bool alone);

}  // namespace symmoe::fake
