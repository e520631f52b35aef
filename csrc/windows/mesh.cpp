#include "windows/mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "windows/fork_guard.h"
#include "windows/handshake.h"
#include "windows/unix_socket.h"

namespace symmoe {
namespace {

constexpr int64_t kLivenessNs = 100'000'000;  // between two looks at whether a peer still lives
// Each message may hold a descriptor, of which a process has a limited number.
constexpr size_t kMaxInbox = 64;
constexpr int64_t kBusyNs = 2'000'000;  // before sending again when nothing tells us when

}  // namespace

static_assert(Mesh::kTokenBytes == kGroupTokenBytes);

Mesh::Mesh(int rank, int world, const std::vector<std::string>& addresses, std::string_view token,
           Listener&& listener, int64_t deadline_ns)
    : rank_(rank), world_(world), generation_(fork_generation()) {
  const Listener owned = std::move(listener);  // its address vanishes when this returns or throws
  for (Connection& made : shake_hands(rank, world, addresses, token, owned, deadline_ns)) {
    if (!made.socket) {
      peers_.push_back(nullptr);
      continue;
    }
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->socket = std::move(made.socket);
    peers_.back()->process = std::move(made.process);
    peers_.back()->pid = made.pid;
  }
}

Mesh::~Mesh() { close(); }

void Mesh::close() noexcept {
  if (generation_ != fork_generation() || closed_.exchange(true)) return;
  const Message goodbye{Message::Kind::kGoodbye, 0, 0};
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    try {
      // If its queue is full, the peer finds the end of the connection and takes it for a death.
      unix_socket::send_packet(peer->socket.get(), &goodbye, sizeof(goodbye));
    } catch (const Error&) {
      // Whatever ails this connection, the others are to be closed as well.
    }
    // The descriptor itself stays until the destructor, as another thread may be polling it.
    shutdown(peer->socket.get(), SHUT_RDWR);
  }
}

void Mesh::require_usable() const {
  if (generation_ != fork_generation()) {
    throw Closed("rank " + std::to_string(rank_) +
                 ": this process is a fork of the one that made " +
                 "the group; a fork cannot use it");
  }
  if (closed_.load()) throw Closed("rank " + std::to_string(rank_) + ": the group was closed");
}

Mesh::Peer& Mesh::peer(int rank) {
  if (rank < 0 || rank >= world_ || rank == rank_) {
    throw InvalidArgument("rank " + std::to_string(rank_) + " of " + std::to_string(world_) +
                          " has no connection with rank " + std::to_string(rank));
  }
  return *peers_[static_cast<size_t>(rank)];
}

bool Mesh::alive(int rank) {
  require_usable();
  if (rank == rank_) return true;
  Peer& other = peer(rank);
  if (other.lost.load(std::memory_order_relaxed)) return false;
  pollfd events[2] = {{other.socket.get(), POLLRDHUP, 0}, {other.process.get(), POLLIN, 0}};
  unix_socket::wait_for_events(events, 0);
  const bool hung_up = (events[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  const bool ended = (events[1].revents & POLLIN) != 0;
  if (hung_up || ended) other.lost.store(true, std::memory_order_relaxed);
  return !hung_up && !ended;
}

void Mesh::check(int rank) {
  const bool lives = alive(rank);
  // While this rank waits for a flag of `rank`, that one may be waiting for room to announce.
  if (lives && rank != rank_) take_in(rank);
  if (!lives) throw_lost(rank);
}

void Mesh::throw_lost(int rank) {
  take_in(rank);  // its goodbye may lie behind announcements that nobody has read
  Peer& other = peer(rank);
  bool said_goodbye = false;
  {
    const std::lock_guard lock(other.mutex);
    said_goodbye = other.said_goodbye;
  }
  throw PeerLost("rank " + std::to_string(rank) + " (pid " + std::to_string(other.pid) + ") " +
                 (said_goodbye ? "closed the group" : "ended"));
}

void Mesh::take_in(int rank) {
  Peer& other = peer(rank);
  const std::lock_guard lock(other.mutex);
  while (other.inbox.size() < kMaxInbox && take_in_one(other, rank)) {
  }
}

bool Mesh::take_in_one(Peer& other, int rank) {
  Incoming incoming;
  size_t bytes = 0;
  const auto got = unix_socket::receive_packet(other.socket.get(), &incoming.message,
                                               sizeof(Message), bytes, &incoming.descriptor);
  if (got != unix_socket::Received::kYes) return false;
  if (bytes != sizeof(Message)) {
    throw SystemError("rank " + std::to_string(rank) + " sent a message of " +
                      std::to_string(bytes) + " bytes to rank " + std::to_string(rank_) +
                      "; messages have " + std::to_string(sizeof(Message)));
  }
  if (incoming.message.kind == Message::Kind::kGoodbye) {
    other.said_goodbye = true;
  } else {
    other.inbox.push_back(std::move(incoming));
  }
  return true;
}

std::optional<Incoming> Mesh::receive(int rank) {
  require_usable();
  Peer& other = peer(rank);
  const std::lock_guard lock(other.mutex);
  if (other.inbox.empty()) take_in_one(other, rank);
  if (other.inbox.empty()) return std::nullopt;
  std::optional<Incoming> first(std::move(other.inbox.front()));
  other.inbox.pop_front();
  return first;
}

Incoming Mesh::expect(int rank, const char* what, int64_t deadline_ns) {
  for (;;) {
    // Asked before looking: what a rank sent before it ended has arrived by then.
    const bool lives = alive(rank);
    if (std::optional<Incoming> incoming = receive(rank)) return std::move(*incoming);
    if (!lives) check(rank);
    const int64_t left_ns = deadline_ns - now_ns();
    if (left_ns <= 0) {
      throw DeadlineExceeded("rank " + std::to_string(rank_) + ": no " + what +
                             " has come from rank " + std::to_string(rank));
    }
    wait_for_message(rank, std::min(left_ns, kLivenessNs));
  }
}

void Mesh::wait_for_message(int rank, int64_t timeout_ns) {
  require_usable();
  Peer& other = peer(rank);
  {
    const std::lock_guard lock(other.mutex);
    if (!other.inbox.empty()) return;
  }
  pollfd events[2] = {{other.socket.get(), POLLIN, 0}, {other.process.get(), POLLIN, 0}};
  unix_socket::wait_for_events(events, timeout_ns);
}

void Mesh::send(int rank, const Message& message, int descriptor, int64_t deadline_ns,
                const std::function<void()>& meanwhile) {
  require_usable();
  Peer& other = peer(rank);
  const int64_t start_ns = now_ns();
  for (;;) {
    const auto sent =
        unix_socket::send_packet(other.socket.get(), &message, sizeof(message), descriptor);
    if (sent == unix_socket::Sent::kYes) return;
    if (sent == unix_socket::Sent::kHungUp) {
      require_usable();  // closed here, by another thread, looks the same
      throw_lost(rank);
    }
    check(rank);
    meanwhile();
    const int64_t left_ns = deadline_ns - now_ns();
    if (left_ns <= 0) {
      throw DeadlineExceeded("rank " + std::to_string(rank) + " (pid " + std::to_string(other.pid) +
                             ") has not read what rank " + std::to_string(rank_) +
                             " announced to it for " +
                             std::to_string((now_ns() - start_ns) / 1'000'000) + " ms");
    }
    wait_for_room(rank, sent == unix_socket::Sent::kQueueFull, std::min(kLivenessNs, left_ns));
  }
}

void Mesh::wait_for_room(int rank, bool queue_is_full, int64_t timeout_ns) {
  std::vector<pollfd> events;
  for (int other = 0; other < world_; ++other) {
    // A peer that is gone would be reported again and again.
    if (other == rank_ || !alive(other)) continue;
    const bool wait_for_writing = other == rank && queue_is_full;
    events.push_back({peer(other).socket.get(),
                      static_cast<short>(wait_for_writing ? POLLIN | POLLOUT : POLLIN), 0});
  }
  unix_socket::wait_for_events(events, queue_is_full ? timeout_ns : std::min(timeout_ns, kBusyNs));
}

}  // namespace symmoe
