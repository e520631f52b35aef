#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "sync/channel.h"
#include "windows/window.h"

namespace symmoe {

// One channel with what this rank remembers about it between calls.
struct Endpoint {
  // The last window each peer published here, and its address in this process.
  struct PeerWindow {
    uint32_t ordinal = 0;
    const std::byte* base = nullptr;
  };

  explicit Endpoint(Channel c) : channel(std::move(c)), peers(size_t(channel.ranks())) {}

  Channel channel;
  std::vector<PeerWindow> peers;  // by rank
  std::atomic_flag busy;          // a thread is in a call
};

// Takes an endpoint for one call; a second thread on it is the caller's mistake.
class Exchange {
 public:
  // Throws InvalidArgument if the endpoint is taken.
  Exchange(Endpoint& endpoint, const char* operation);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Waits until all peers have finished the last call here: this rank may write its stage window
  // and its flag line.
  void open();

  // The epoch that meet will publish.
  uint32_t next_epoch() const { return endpoint_.channel.epoch() + 1; }

  // The one barrier of a call, in two halves. publish: this rank's rows for its peers are there.
  // meet: everybody's are. Throws Mismatch, on every rank alike, if signatures differ. False if
  // some rank published no window: also known to every rank alike.
  void publish(const Posting& posting) { endpoint_.channel.publish(posting); }
  bool meet();
  bool meet(const Posting& posting) {
    publish(posting);
    return meet();
  }

  // Where `rank`'s rows begin; valid between meet and finish.
  const std::byte* rows_of(int rank, WindowSource& source);

  void finish() { endpoint_.channel.finish(); }

 private:
  void require_same_signature();

  Endpoint& endpoint_;
  const char* operation_;
};

}  // namespace symmoe
