#include "fake_nccl/collectives.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "fake_nccl/arithmetic.h"

namespace symmoe::fake {
namespace {

Posting posting_of(const Operation& operation) {
  Posting posting = new_posting(operation.name);
  posting.count = operation.count;
  posting.type = operation.type;
  posting.red_op = operation.reduces() ? operation.red_op : -1;
  posting.root = operation.root;
  posting.kernel = operation.kernel;
  posting.call = operation.call;
  posting.position = operation.position;
  posting.operations = operation.operations;
  if (operation.window != nullptr) {
    posting.window = operation.window->ordinal;
    posting.offset = operation.window->offset_of(operation.send);
    posting.ordinary_receive = operation.ordinary_receive ? 1 : 0;
  }
  return posting;
}

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

// The order in which a ring that ends at `last` passes the ranks.
std::vector<int> ring_ending_at(int last, int world) {
  std::vector<int> order;
  for (int step = 1; step <= world; ++step) order.push_back((last + step) % world);
  return order;
}

// Reads the peers' windows themselves. LL adds in rank order, LD from the own rank on.
void symmetric_reduce_scatter(Presence& presence, const Operation& operation) {
  const int world = presence.world();
  const size_t share = operation.count * size_of(operation.type);
  const size_t offset =
      operation.window->offset_of(operation.send) + static_cast<size_t>(presence.rank()) * share;
  const int first = operation.kernel == kFakeNcclSymmetricLL ? 0 : presence.rank();
  std::vector<const std::byte*> sources;
  for (int step = 0; step < world; ++step) {
    const auto rank = static_cast<size_t>((first + step) % world);
    sources.push_back(operation.window->peers[rank] + offset);
  }
  combine(operation.type, operation.red_op, Rounding::kOnce, sources, operation.receive,
          operation.count);
  presence.meet(&Member::device);
}

// Ordinary collectives go through every rank's scratch, piece by piece.
class Staged {
 public:
  Staged(Presence& presence, const Operation& operation)
      : presence_(presence), operation_(operation), element_(size_of(operation.type)) {}

  void run() {
    const auto world = static_cast<size_t>(presence_.world());
    const size_t shares = operation_.kind == Kind::kReduceScatter ? world : 1;
    const size_t most = kScratchBytes / (shares * element_);
    for (size_t at = 0; at < operation_.count; at += most) {
      const size_t count = std::min(most, operation_.count - at);
      stage(at, count, shares);
      presence_.meet(&Member::device);
      take(at, count);
      presence_.meet(&Member::device);
    }
  }

 private:
  std::byte* scratch(int rank) const {
    return presence_.control().scratch[static_cast<size_t>(rank)].data();
  }

  void stage(size_t at, size_t count, size_t shares) {
    if (operation_.kind == Kind::kBroadcast && operation_.root != presence_.rank()) return;
    std::byte* const own = scratch(presence_.rank());
    for (size_t share = 0; share < shares; ++share) {
      copy_bytes(own + share * count * element_,
                 operation_.send + (share * operation_.count + at) * element_, count * element_);
    }
  }

  void take(size_t at, size_t count) {
    const int rank = presence_.rank();
    std::byte* const out =
        operation_.receive == nullptr ? nullptr : operation_.receive + at * element_;
    switch (operation_.kind) {
      case Kind::kReduceScatter:
        return reduce(ring_ending_at(rank, presence_.world()),
                      static_cast<size_t>(rank) * count * element_, out, count);
      case Kind::kReduce:
        if (rank == operation_.root) reduce(ring_ending_at(rank, presence_.world()), 0, out, count);
        return;
      case Kind::kAllReduce:
        return reduce_all(out, count);
      case Kind::kBroadcast:
        return copy_bytes(out, scratch(operation_.root), count * element_);
      case Kind::kAllGather:
        for (int from = 0; from < presence_.world(); ++from) {
          copy_bytes(out + static_cast<size_t>(from) * operation_.count * element_, scratch(from),
                     count * element_);
        }
        return;
      case Kind::kSend:
      case Kind::kReceive:
        return;  // no collectives
    }
  }

  void reduce(const std::vector<int>& order, size_t offset, std::byte* out, size_t count) {
    std::vector<const std::byte*> sources;
    for (const int rank : order) sources.push_back(scratch(rank) + offset);
    combine(operation_.type, operation_.red_op, Rounding::kEveryHop, sources, out, count);
  }

  // Every rank is the end of the ring for a part of the piece.
  void reduce_all(std::byte* out, size_t count) {
    const auto world = static_cast<size_t>(presence_.world());
    for (size_t part = 0; part < world; ++part) {
      const size_t begin = count * part / world;
      const size_t end = count * (part + 1) / world;
      reduce(ring_ending_at(static_cast<int>(part), presence_.world()), begin * element_,
             out + begin * element_, end - begin);
    }
  }

  Presence& presence_;
  const Operation& operation_;
  size_t element_;
};

}  // namespace

void run_collective(Presence& presence, const Operation& operation) {
  presence.meet(&Member::device, posting_of(operation));
  presence.require_agreement(&Member::device);
  if (operation.window != nullptr) return symmetric_reduce_scatter(presence, operation);
  Staged(presence, operation).run();
  // Nobody posts again before all have read.
  if (operation.count == 0) presence.meet(&Member::device);
}

}  // namespace symmoe::fake
