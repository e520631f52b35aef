#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "sync/adaptive_wait.h"
#include "sync/flag_line.h"

namespace symmoe {

// One rank's end of a channel: the protocol that lets all ranks read each other's windows once per
// call. Per call and rank, in this order:
//
//   guard(e)       every peer has finished reading what epoch e published: the window is mine again
//   (write the window)
//   publish(...)   my rows are there: epoch() goes up by one
//   await_peers()  everybody's rows are there
//   (read the peers' windows)
//   finish()       I have read them
//
// Calls of one channel come one after the other; different channels are independent.
class Channel {
 public:
  // Goes on from the epoch in the own line (0 in zeroed memory), which must be equal on all ranks.
  Channel(std::string name, int rank, std::vector<FlagLine*> lines, WaitPolicy policy,
          Watch* watch);

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(lines_.size()); }
  const std::string& name() const { return name_; }

  // Number of the last published call; 0 before the first. Wraps round.
  uint32_t epoch() const { return epoch_; }

  // Runs `body`, which deals with peers outside of this channel's waits. If it finds one lost or
  // late, the error names the call: "reduce_scatter (combine, lane 0), rank 1, after epoch 16: ".
  template <typename Body>
  auto naming(const char* operation, Body&& body) const;

  // Waits until every peer has finished call `epoch`, the last one published here or an older one
  // (one look per peer if they have).
  void guard(uint32_t epoch, const char* operation);

  // Publishes the next epoch, and with it all that this thread wrote before. The previous epoch
  // must be guarded: peers may still look at its posting.
  void publish(const Posting& posting);

  // Waits until every peer has published the same epoch.
  void await_peers(const char* operation);

  // What `rank` published; valid between await_peers and finish.
  const FlagLine& line(int rank) const { return *lines_[rank]; }

  // This rank has read what it needed of the current epoch.
  void finish();

 private:
  std::string context(const char* operation) const;

  std::string name_;  // "combine, lane 0": for errors
  int rank_;
  std::vector<FlagLine*> lines_;
  WaitPolicy policy_;
  Watch* watch_;
  uint32_t epoch_;
};

template <typename Body>
auto Channel::naming(const char* operation, Body&& body) const {
  try {
    return body();
  } catch (const PeerLost& error) {
    throw PeerLost(context(operation) + error.what());
  } catch (const DeadlineExceeded& error) {
    throw DeadlineExceeded(context(operation) + error.what());
  }
}

}  // namespace symmoe
