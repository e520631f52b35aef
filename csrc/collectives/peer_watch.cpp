#include "collectives/peer_watch.h"

#include <utility>

namespace symmoe {

PeerWatch::PeerWatch(int rank, std::vector<ControlBlock*> blocks, Liveness* liveness,
                     int64_t stall_ns, std::function<void()> interrupt)
    : rank_(rank),
      blocks_(std::move(blocks)),
      liveness_(liveness),
      stall_ns_(stall_ns),
      interrupt_(std::move(interrupt)) {}

void PeerWatch::look(int rank, int64_t waited_ns, const std::string& context) {
  if (interrupt_) interrupt_();
  // The note first: a rank that gave up probably ends next, and its note names the cause.
  look_for_poison(rank, context);
  try {
    liveness_->check(rank);
  } catch (const PeerLost& lost) {
    throw PeerLost(context + ": " + lost.what());
  }
  if (stall_ns_ != 0 && waited_ns >= stall_ns_) look_for_stall(rank, context);
}

void PeerWatch::look_for_poison(int rank, const std::string& context) const {
  const PoisonNote& note = blocks_[static_cast<size_t>(rank)]->poison;
  const PoisonNote::Kind kind = note.kind.load(std::memory_order_acquire);
  if (kind == PoisonNote::Kind::kNone) return;
  const std::string message =
      context + ": rank " + std::to_string(rank) + " gave up: " + std::string(note.text);
  if (kind == PoisonNote::Kind::kPeerLost) throw PeerLost(message);
  if (kind == PoisonNote::Kind::kDeadline) throw DeadlineExceeded(message);
  if (kind == PoisonNote::Kind::kCrossedCalls) throw CrossedCalls(message);
  throw Poisoned(message);
}

void PeerWatch::look_for_stall(int rank, const std::string& context) const {
  // Both of us wait. If the peer has announced a call on some lane where I have not, and I one
  // where it has not, neither can ever go on, unless other threads are about to enter those lanes:
  // they are taken to have done so within stall_ns.
  const ControlBlock& mine = *blocks_[static_cast<size_t>(rank_)];
  const ControlBlock& theirs = *blocks_[static_cast<size_t>(rank)];
  const auto compare = [&](const FlagLine& their_line, const FlagLine& my_line) {
    const uint32_t their_epoch = their_line.epoch.load(std::memory_order_acquire);
    const uint32_t my_epoch = my_line.epoch.load(std::memory_order_relaxed);
    if (their_epoch == my_epoch || !reached(their_epoch, my_epoch)) return;
    throw CrossedCalls(context + ": ranks wait for each other in different calls: rank " +
                       std::to_string(rank) + " is in: " + std::string(their_line.text));
  };
  for (int lane = 0; lane < kMaxLanes; ++lane) compare(theirs.checks[lane], mine.checks[lane]);
  compare(theirs.administration, mine.administration);
}

}  // namespace symmoe
