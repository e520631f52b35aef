#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "windows/descriptor.h"
#include "windows/listener.h"
#include "windows/window.h"

namespace symmoe {

// What ranks tell each other once connected. Sent as is: all ranks run on one host.
struct Message {
  enum class Kind : uint32_t { kGoodbye = 1, kControl = 2, kNew = 3, kDrop = 4 };

  Kind kind = Kind::kGoodbye;
  uint32_t ordinal = 0;
  uint64_t bytes = 0;
};

struct Incoming {
  Message message;
  Descriptor descriptor;  // empty if none came with the message
};

// One connection (AF_UNIX, SOCK_SEQPACKET) to each other rank of the group, between processes of
// the same user that proved to each other that they know the group's token. Carries announcements
// with descriptors, and shows when a peer ends.
//
// All methods may be called from several threads. In a forked child they throw Closed.
class Mesh : public Liveness {
 public:
  static constexpr size_t kTokenBytes = 32;

  // Collective. `addresses[r]` is the listener's address of rank r (the own entry is not used);
  // `token` is kTokenBytes random bytes, equal on all ranks and known to nobody else;
  // `deadline_ns` is a value of now_ns(). Connections of strangers are dropped and disturb nobody.
  // Throws DeadlineExceeded naming the ranks that are missing, PeerLost if a rank ended meanwhile,
  // Mismatch if ranks disagree about who is who.
  Mesh(int rank, int world, const std::vector<std::string>& addresses, std::string_view token,
       Listener&& listener, int64_t deadline_ns);
  ~Mesh() override;
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const { return rank_; }
  int world() const { return world_; }

  // Throws Closed after close(), and in a forked child.
  void require_usable() const;

  // PeerLost: "rank R (pid P) ended" or "rank R (pid P) closed the group". Messages that arrived
  // before that can still be received. The own rank is always alive. A rank that waits for another
  // one and checks it now and then also takes in a few of its messages, so that it gets on.
  void check(int rank) override;
  bool alive(int rank);

  // Sends to `rank`, with a copy of `descriptor` unless that is -1. While the peer's queue is full,
  // calls `meanwhile` whenever something arrives: it should receive, as the peer may be waiting for
  // room in this rank's queue in turn. Throws PeerLost or DeadlineExceeded.
  void send(int rank, const Message& message, int descriptor, int64_t deadline_ns,
            const std::function<void()>& meanwhile);

  // The next message of `rank` if one has arrived.
  std::optional<Incoming> receive(int rank);

  // Waits for the next message of `rank`. Throws PeerLost, or DeadlineExceeded saying that no
  // `what` has come. For who alone receives.
  Incoming expect(int rank, const char* what, int64_t deadline_ns);

  // Returns when a message of `rank` may have arrived, or it ended, or after `timeout_ns`.
  void wait_for_message(int rank, int64_t timeout_ns);

  // Tells the peers that this rank leaves on purpose; afterwards every method throws Closed.
  // Idempotent; the destructor does it too.
  void close() noexcept;

 private:
  struct Peer {
    Descriptor socket;
    Descriptor process;  // pidfd; empty where the kernel does not give one
    int64_t pid = 0;     // as this process sees it, or as the peer sees itself
    std::atomic<bool> lost = false;
    std::mutex mutex;  // guards what follows
    std::deque<Incoming> inbox;
    bool said_goodbye = false;
  };

  Peer& peer(int rank);
  void take_in(int rank);  // moves what has arrived from the socket to the inbox, up to a limit
  bool take_in_one(Peer& other, int rank);
  void wait_for_room(int rank, bool queue_is_full, int64_t timeout_ns);
  [[noreturn]] void throw_lost(int rank);

  const int rank_;
  const int world_;
  const uint64_t generation_;
  std::atomic<bool> closed_ = false;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; the own entry is nullptr
};

}  // namespace symmoe
