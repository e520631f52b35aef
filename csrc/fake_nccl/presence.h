#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "fake_nccl/control.h"
#include "fake_nccl/refusal.h"

namespace symmoe::fake {

// One rank among the others: it meets them, fails together with them, and notices those that will
// never come. Nothing waits longer than the timeout.
class Presence {
 public:
  // Which of a rank's two sequences of meetings: the host's or the queued work's. Each is for one
  // thread at a time.
  using Lane = Line Member::*;

  Presence(std::shared_ptr<ControlBlock> block, int rank, int world);

  int rank() const { return rank_; }
  int world() const { return world_; }
  int group_number() const { return block_->number(); }
  Control& control() const { return **block_; }
  Member& member(int rank) const { return control().members[static_cast<size_t>(rank)]; }
  // What a rank has posted; valid between a meeting and the one after the next.
  const Posting& posting(Lane lane, int rank) const { return (member(rank).*lane).posting; }

  // Takes this rank's place. Throws Refusal if somebody else has.
  void join();
  void leave();
  bool left() const { return member(rank_).state.load() == MemberState::kLeft; }

  // Publishes the posting, with all that was written before, and waits until every rank has come.
  // Throws Refusal, and fails the communicator, if one of them does not.
  void meet(Lane lane, const Posting& posting);
  // As before, with the posting of the last meeting.
  void meet(Lane lane);
  // Fails the communicator unless all ranks posted the same.
  void require_agreement(Lane lane);

  // The first failure is the communicator's, on all ranks.
  void fail(NcclResult code, const std::string& text);
  std::optional<Refusal> failure() const;

  // May be called by any thread: whoever waits here gives up.
  void abort();
  bool aborted() const { return aborted_.load(); }

  // Throws Refusal if the communicator failed or was aborted.
  void require_working() const;

  // Why nothing will ever come from this rank; nullopt while something may.
  std::optional<std::string> lost(int rank) const;

  // Goes on when the communicator has failed, was aborted or `milliseconds` have passed.
  void sleep(int milliseconds) const;
  // For an injected failure: waits until the communicator ends one way or another.
  [[noreturn]] void hang(const char* operation);

 private:
  void await(Lane lane, int rank, uint64_t step, int64_t deadline_ns);

  std::shared_ptr<ControlBlock> block_;
  int rank_;
  int world_;
  std::atomic<bool> aborted_ = false;
};

}  // namespace symmoe::fake
