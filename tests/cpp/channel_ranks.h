#pragma once

// Flag lines and channels for threads that play the ranks of one channel.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sync/channel.h"
#include "thread_ranks.h"

namespace symmoe::check {

// Has no objection, however long a rank waits.
class PatientWatch : public Watch {
 public:
  void look(int, int64_t, const std::string&) override {}
};

// The lines of one channel, as if every rank had reached `epoch` already.
class Lines {
 public:
  explicit Lines(int ranks, uint32_t epoch = 0)
      : memory_(make_memory(sizeof(FlagLine) * static_cast<size_t>(ranks))) {
    auto* const first = static_cast<FlagLine*>(memory_.get());
    for (int rank = 0; rank < ranks; ++rank) {
      all_.push_back(first + rank);
      all_.back()->epoch = all_.back()->done = epoch;
    }
  }

  int ranks() const { return static_cast<int>(all_.size()); }
  FlagLine& operator[](int rank) const { return *all_[static_cast<size_t>(rank)]; }
  FlagLine* const* data() const { return all_.data(); }

  Channel channel(int rank, const WaitPolicy& policy, Watch& watch) const {
    return Channel("combine, lane 0", rank, all_, policy, &watch);
  }

  // Nobody is counted as asleep any more.
  bool no_waiters() const {
    for (const FlagLine* line : all_) {
      if (line->epoch_waiters != 0 || line->done_waiters != 0) return false;
    }
    return true;
  }

 private:
  std::shared_ptr<void> memory_;
  std::vector<FlagLine*> all_;
};

// What a rank writes in a call: ordinary memory, read by all.
struct Rows {
  static constexpr size_t kCount = 48;
  uint64_t values[kCount] = {};

  void write(int rank, uint32_t epoch) {
    for (size_t i = 0; i < kCount; ++i) values[i] = value(rank, epoch, i);
  }
  // Adds up, so that every value is read, and is zero if all are right.
  uint64_t difference(int rank, uint32_t epoch) const {
    uint64_t sum = 0;
    for (size_t i = 0; i < kCount; ++i) sum |= values[i] ^ value(rank, epoch, i);
    return sum;
  }
  static uint64_t value(int rank, uint32_t epoch, size_t i) {
    return (uint64_t{epoch} << 32) + static_cast<uint64_t>(rank) * 1000 + i;
  }
};

// The whole protocol on one rank for `calls` calls, checking all that peers publish.
inline void play_calls(Channel& channel, std::vector<Rows>& rows, int calls) {
  const int self = channel.rank();
  for (int call = 0; call < calls; ++call) {
    channel.guard(channel.epoch(), "reduce_scatter");
    const uint32_t epoch = channel.epoch() + 1;
    rows[static_cast<size_t>(self)].write(self, epoch);
    const std::string text = "call " + std::to_string(epoch) + " of rank " + std::to_string(self);
    channel.publish({epoch, uint64_t{epoch} * 2, uint64_t{epoch} * 3, text});
    CHECK_EQ(channel.epoch(), epoch);
    channel.await_peers("reduce_scatter");
    for (int rank = 0; rank < channel.ranks(); ++rank) {
      CHECK_EQ(rows[static_cast<size_t>(rank)].difference(rank, epoch), uint64_t{0});
      const FlagLine& line = channel.line(rank);
      CHECK_EQ(line.ordinal, epoch);
      CHECK_EQ(line.offset, uint64_t{epoch} * 2);
      CHECK_EQ(line.signature, uint64_t{epoch} * 3);
      CHECK_EQ(std::string(line.text),
               "call " + std::to_string(epoch) + " of rank " + std::to_string(rank));
    }
    channel.finish();
  }
}

}  // namespace symmoe::check
