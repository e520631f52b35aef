#include "fake_nccl/operation.h"

#include <cstdint>
#include <string>

#include "fake_nccl/arithmetic.h"
#include "fake_nccl/log.h"
#include "fake_nccl/names.h"
#include "fake_nccl/refusal.h"
#include "fake_nccl/settings.h"

namespace symmoe::fake {
namespace {

// NCCL takes the latency kernel below about this size.
constexpr size_t kLatencyBytes = size_t{16} << 10;
// From this version on the receive buffer of a symmetric reduce-scatter may be any memory.
constexpr int kOrdinaryReceiveSince = nccl_version(2, 29, 2);

[[noreturn]] void refuse(const std::string& text) { throw Refusal{kNcclInvalidArgument, text}; }

// Ranks whose share the memory holds.
size_t shares_read(const Operation& operation, int world) {
  return operation.kind == Kind::kReduceScatter ? static_cast<size_t>(world) : 1;
}
size_t shares_written(const Operation& operation, int world) {
  return operation.kind == Kind::kAllGather ? static_cast<size_t>(world) : 1;
}

bool symmetric_type(NcclDataType type) {
  return type == kNcclBfloat16 || type == kNcclFloat16 || type == kNcclFloat32;
}

// The memory is an allocation of ours, or a stranger's, of which nothing is known.
void note_allocation(Operation& operation, const void* memory, size_t bytes) {
  std::shared_ptr<Allocation> allocation = memory == nullptr ? nullptr : find_allocation(memory);
  if (allocation == nullptr) return;
  const auto offset =
      static_cast<size_t>(static_cast<const std::byte*>(memory) - allocation->base());
  if (bytes > allocation->bytes() - offset) {
    refuse(std::to_string(bytes) + " bytes from " + std::to_string(offset) +
           " on are beyond an allocation of " + std::to_string(allocation->bytes()));
  }
  operation.allocations.push_back(std::move(allocation));
}

// The two buffers of a collective have nothing in common, or the one is exactly the own share of
// the other (the same memory, where there are no shares). NCCL does not look.
void note_overlap(const Operation& operation, int rank, int world) {
  const bool at_root = operation.root == rank;
  const bool both = operation.kind == Kind::kReduceScatter || operation.kind == Kind::kAllGather ||
                    operation.kind == Kind::kAllReduce || at_root;
  if (operation.message() || !both || operation.count == 0) return;
  const size_t share_bytes = operation.count * size_of(operation.type);
  const size_t own = static_cast<size_t>(rank) * share_bytes;
  const auto send = reinterpret_cast<uintptr_t>(operation.send);
  const auto receive = reinterpret_cast<uintptr_t>(operation.receive);
  const bool apart = send + share_bytes * shares_read(operation, world) <= receive ||
                     receive + share_bytes * shares_written(operation, world) <= send;
  const bool in_place = operation.kind == Kind::kReduceScatter ? receive == send + own
                        : operation.kind == Kind::kAllGather   ? send == receive + own
                                                               : send == receive;
  if (apart || in_place) return;
  log_misuse(std::string(operation.name) + ", rank " + std::to_string(rank) +
             ": the receive buffer overlaps the send buffer, and the call is not in place");
}

}  // namespace

void require_valid(const Operation& operation, int rank, int world) {
  if (size_of(operation.type) == 0) {
    refuse("element type " + std::to_string(operation.type) + " is not known");
  }
  if (operation.reduces() && !supported(operation.red_op)) {
    refuse(std::string("reduction ") + name_of(operation.red_op) + " is not known");
  }
  const bool rooted =
      operation.message() || operation.kind == Kind::kReduce || operation.kind == Kind::kBroadcast;
  if (rooted && (operation.root < 0 || operation.root >= world)) {
    refuse("there is no rank " + std::to_string(operation.root) + " in a world of " +
           std::to_string(world));
  }
  if (operation.count == 0) return;
  const bool at_root = operation.root == rank;
  const bool reads =
      operation.kind != Kind::kReceive && (operation.kind != Kind::kBroadcast || at_root);
  const bool writes = operation.kind != Kind::kSend && (operation.kind != Kind::kReduce || at_root);
  if (reads && operation.send == nullptr) refuse("the send buffer is null");
  if (writes && operation.receive == nullptr) refuse("the receive buffer is null");
}

void choose_kernel(Operation& operation, const Windows& windows, int rank, int world, bool alone) {
  const size_t share_bytes = operation.count * size_of(operation.type);
  const size_t read_bytes = share_bytes * shares_read(operation, world);
  const bool at_root = operation.root == rank;
  note_overlap(operation, rank, world);
  if (operation.kind != Kind::kBroadcast || at_root) {
    note_allocation(operation, operation.send, read_bytes);
  }
  if (operation.kind != Kind::kReduce || at_root) {
    note_allocation(operation, operation.receive, share_bytes * shares_written(operation, world));
  }
  if (operation.kind != Kind::kReduceScatter || !symmetric_type(operation.type) ||
      (operation.red_op != kNcclSum && operation.red_op != kNcclAvg)) {
    return;
  }
  std::shared_ptr<Window> window = windows.containing(operation.send);
  if (window == nullptr) return;
  const bool ordinary_receive = windows.containing(operation.receive) == nullptr;
  if (ordinary_receive && version() < kOrdinaryReceiveSince) return;
  // NCCL looks at where the pointer starts only, and would read beyond the window.
  if (read_bytes > window->bytes - window->offset_of(operation.send)) {
    refuse(std::to_string(read_bytes) + " bytes from " +
           std::to_string(window->offset_of(operation.send)) + " on are beyond a window of " +
           std::to_string(window->bytes));
  }
  operation.window = std::move(window);
  operation.ordinary_receive = ordinary_receive;
  operation.kernel =
      alone && share_bytes < kLatencyBytes ? kFakeNcclSymmetricLL : kFakeNcclSymmetricLD;
}

}  // namespace symmoe::fake
