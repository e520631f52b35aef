#include "sync/channel.h"

#include <utility>

// The store that makes a rank's rows visible. A test plants a relaxed order here and expects the
// race to be reported.
#ifndef SYMMOE_PUBLISH_ORDER
#define SYMMOE_PUBLISH_ORDER std::memory_order_seq_cst
#endif

namespace symmoe {

Channel::Channel(std::string name, int rank, std::vector<FlagLine*> lines, WaitPolicy policy,
                 Watch* watch)
    : name_(std::move(name)),
      rank_(rank),
      lines_(std::move(lines)),
      policy_(policy),
      watch_(watch),
      epoch_(lines_[static_cast<size_t>(rank)]->epoch.load(std::memory_order_relaxed)) {}

std::string Channel::context(const char* operation) const {
  return std::string(operation) + " (" + name_ + "), rank " + std::to_string(rank_) +
         ", after epoch " + std::to_string(epoch_) + ": ";
}

void Channel::guard(uint32_t epoch, const char* operation) {
  // Older calls were guarded before the last publish. Not asked again: their number may be so old
  // that it has wrapped round and looks like one of the future.
  if (epoch != epoch_) return;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank != rank_ && !reached(lines_[rank]->done.load(std::memory_order_acquire), epoch)) {
      adaptive_wait(lines_.data(), ranks(), rank_, Counter::kDone, epoch, policy_, *watch_,
                    {operation, name_.c_str()});
      return;
    }
  }
}

void Channel::publish(const Posting& posting) {
  FlagLine& own = *lines_[rank_];
  own.ordinal = posting.ordinal;
  own.offset = posting.offset;
  own.signature = posting.signature;
  own.routing = posting.routing;
  const size_t length = posting.text.copy(own.text, FlagLine::kTextBytes - 1);
  own.text[length] = '\0';
  own.cpu.store(current_cpu(), std::memory_order_relaxed);
  own.epoch.store(++epoch_, SYMMOE_PUBLISH_ORDER);
  wake_waiters(own, Counter::kEpoch);
}

void Channel::await_peers(const char* operation) {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank != rank_ && !reached(lines_[rank]->epoch.load(std::memory_order_acquire), epoch_)) {
      adaptive_wait(lines_.data(), ranks(), rank_, Counter::kEpoch, epoch_, policy_, *watch_,
                    {operation, name_.c_str()});
      return;
    }
  }
}

void Channel::finish() {
  FlagLine& own = *lines_[rank_];
  own.done.store(epoch_, std::memory_order_seq_cst);
  wake_waiters(own, Counter::kDone);
}

}  // namespace symmoe
