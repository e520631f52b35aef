#include "windows/handshake.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <list>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "windows/unix_socket.h"

namespace symmoe {
namespace {

constexpr uint32_t kProtocolVersion = 1;
constexpr std::array<char, 8> kMagic = {'s', 'y', 'm', 'm', 'o', 'e', 'w', '\0'};

// More connections than this that have not said who they are: the longest silent one is dropped.
constexpr size_t kMaxStrangers = 64;
constexpr int64_t kRetryNs = 20'000'000;

enum class Answer : uint32_t { kHello = 0, kWelcome = 1, kOtherVersion = 2, kOtherGroup = 3 };

// The first message in each direction. The fields up to the token stay where they are in all
// versions, so that any two versions understand why they do not fit.
struct Hello {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kProtocolVersion;
  Answer answer = Answer::kHello;
  std::array<char, kGroupTokenBytes> token{};
  int32_t rank = 0;
  int32_t world = 0;
  int64_t pid = 0;
};
static_assert(sizeof(Hello) == 64);
constexpr size_t kProofBytes = offsetof(Hello, rank);

// Takes the same time wherever the difference is.
bool same_token(const std::array<char, kGroupTokenBytes>& left,
                const std::array<char, kGroupTokenBytes>& right) {
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < kGroupTokenBytes; ++i) {
    difference = static_cast<unsigned char>(difference | (left[i] ^ right[i]));
  }
  return difference == 0;
}

class Handshake {
 public:
  Handshake(int rank, int world, const std::vector<std::string>& addresses, std::string_view token,
            const Listener& listener, int64_t deadline_ns)
      : rank_(rank),
        world_(world),
        addresses_(addresses),
        listener_(listener),
        start_ns_(now_ns()),
        deadline_ns_(deadline_ns),
        connections_(static_cast<size_t>(world)) {
    std::copy(token.begin(), token.end(), token_.begin());
    for (int lower = 0; lower < rank; ++lower) dials_.push_back({lower, {}, 0});
  }

  std::vector<Connection> run() {
    for (;;) {
      dial();
      read_answers();
      read_hellos();
      accept_strangers();
      if (complete()) return std::move(connections_);
      watch_members();
      if (now_ns() >= deadline_ns_) throw_missing();
      wait();
    }
  }

 private:
  // A lower rank that has not answered yet.
  struct Dial {
    int rank;
    Descriptor socket;
    int64_t retry_ns;  // when to connect again, if the socket is empty
  };

  Connection& connection(int rank) { return connections_[static_cast<size_t>(rank)]; }
  bool connected(int rank) { return static_cast<bool>(connection(rank).socket); }

  std::string who() const {
    return "bootstrap of rank " + std::to_string(rank_) + " of " + std::to_string(world_);
  }

  bool complete() {
    for (int rank = 0; rank < world_; ++rank) {
      if (rank != rank_ && !connected(rank)) return false;
    }
    return true;
  }

  Hello hello(Answer answer) const {
    Hello made;
    made.answer = answer;
    made.token = token_;
    made.rank = rank_;
    made.world = world_;
    made.pid = getpid();
    return made;
  }

  void dial() {
    for (Dial& dial : dials_) {
      if (!dial.socket && now_ns() >= dial.retry_ns) dial_one(dial);
    }
  }

  void dial_one(Dial& dial) {
    dial.retry_ns = now_ns() + kRetryNs;
    const std::string& address = addresses_[static_cast<size_t>(dial.rank)];
    Descriptor socket;
    switch (unix_socket::connect_to(address, socket)) {
      case unix_socket::Connected::kQueueFull:
        return;
      case unix_socket::Connected::kNobodyListens:
        throw PeerLost(who() + ": rank " + std::to_string(dial.rank) +
                       " does not listen at its address " + address +
                       ": it ended, or runs on another host");
      case unix_socket::Connected::kYes:
        break;
    }
    // Only now, as the kernel vouches for the user at the other end, may the token go out.
    const uid_t uid = unix_socket::credentials_of_peer(socket.get()).uid;
    if (uid != geteuid()) {
      throw SystemError(who() + ": the address of rank " + std::to_string(dial.rank) +
                        " belongs to user " + std::to_string(uid) + ", this process to user " +
                        std::to_string(geteuid()));
    }
    const Hello greeting = hello(Answer::kHello);
    const auto sent = unix_socket::send_packet(socket.get(), &greeting, sizeof(greeting));
    if (sent == unix_socket::Sent::kYes) dial.socket = std::move(socket);
  }

  void read_answers() {
    std::erase_if(dials_, [this](Dial& dial) { return dial.socket && read_answer(dial); });
  }

  // True when the rank is connected.
  bool read_answer(Dial& dial) {
    Hello answer;
    size_t bytes = 0;
    const auto got = unix_socket::receive_packet(dial.socket.get(), &answer, sizeof(answer), bytes);
    if (got == unix_socket::Received::kNothing) return false;
    const bool proven = got == unix_socket::Received::kYes && proves_token(answer, bytes);
    if (!proven) {
      // It took this rank for one stranger too many, or is none of ours.
      dial.socket.reset();
      return false;
    }
    if (answer.version != kProtocolVersion || answer.answer != Answer::kWelcome ||
        bytes != sizeof(answer) || answer.rank != dial.rank || answer.world != world_) {
      throw_mismatch(answer);
    }
    admit(dial.rank, std::move(dial.socket), answer.pid);
    return true;
  }

  void accept_strangers() {
    for (;;) {
      Descriptor socket;
      switch (unix_socket::accept_from(listener_.descriptor(), socket)) {
        case unix_socket::Accepted::kNothing:
          return;
        case unix_socket::Accepted::kNoResources:
          if (strangers_.empty()) throw_errno(who() + ": accept");
          strangers_.pop_front();
          continue;
        case unix_socket::Accepted::kYes:
          break;
      }
      if (unix_socket::credentials_of_peer(socket.get()).uid != geteuid()) continue;
      strangers_.push_back(std::move(socket));
      read_hellos();
      if (strangers_.size() > kMaxStrangers) strangers_.pop_front();
    }
  }

  void read_hellos() {
    std::erase_if(strangers_, [this](Descriptor& socket) { return read_hello(socket); });
  }

  // True when nothing more is to be expected: it was admitted, or is to be dropped.
  bool read_hello(Descriptor& socket) {
    Hello greeting;
    size_t bytes = 0;
    const auto got = unix_socket::receive_packet(socket.get(), &greeting, sizeof(greeting), bytes);
    if (got == unix_socket::Received::kNothing) return false;
    if (got == unix_socket::Received::kHungUp || !proves_token(greeting, bytes)) return true;

    const bool same_version = greeting.version == kProtocolVersion && bytes == sizeof(greeting);
    const bool fits = same_version && greeting.world == world_ && greeting.rank > rank_ &&
                      greeting.rank < world_ && !connected(greeting.rank);
    const Hello answer = hello(fits           ? Answer::kWelcome
                               : same_version ? Answer::kOtherGroup
                                              : Answer::kOtherVersion);
    const auto sent = unix_socket::send_packet(socket.get(), &answer, sizeof(answer));
    if (!fits) throw_mismatch(greeting);
    if (sent == unix_socket::Sent::kYes) admit(greeting.rank, std::move(socket), greeting.pid);
    return true;
  }

  bool proves_token(const Hello& greeting, size_t bytes) const {
    return bytes >= kProofBytes && greeting.magic == kMagic && same_token(greeting.token, token_);
  }

  void admit(int rank, Descriptor socket, int64_t own_pid) {
    Connection& made = connection(rank);
    const pid_t pid = unix_socket::credentials_of_peer(socket.get()).pid;
    made.process = unix_socket::open_process(pid);
    made.pid = pid > 0 ? pid : own_pid;
    made.socket = std::move(socket);
  }

  // A rank that is connected already may end while this one waits for others.
  void watch_members() {
    for (int rank = 0; rank < world_; ++rank) {
      if (!connected(rank) || !unix_socket::hung_up(connection(rank).socket.get())) continue;
      throw PeerLost(who() + ": rank " + std::to_string(rank) + " (pid " +
                     std::to_string(connection(rank).pid) + ") ended or gave up");
    }
  }

  void wait() {
    std::vector<pollfd> events;
    int64_t wake_ns = deadline_ns_;
    events.push_back({listener_.descriptor(), POLLIN, 0});
    for (const Descriptor& socket : strangers_) events.push_back({socket.get(), POLLIN, 0});
    for (const Dial& dial : dials_) {
      if (dial.socket) {
        events.push_back({dial.socket.get(), POLLIN, 0});
      } else {
        wake_ns = std::min(wake_ns, dial.retry_ns);
      }
    }
    for (const Connection& made : connections_) {
      if (made.socket) events.push_back({made.socket.get(), POLLRDHUP, 0});
    }
    unix_socket::wait_for_events(events, wake_ns - now_ns());
  }

  [[noreturn]] void throw_mismatch(const Hello& other) const {
    throw Mismatch(who() + ": a process (pid " + std::to_string(other.pid) +
                   ") with this group's token says that it is rank " + std::to_string(other.rank) +
                   " of " + std::to_string(other.world) + ", protocol " +
                   std::to_string(other.version) + " (here " + std::to_string(kProtocolVersion) +
                   "), answer " + std::to_string(static_cast<uint32_t>(other.answer)));
  }

  [[noreturn]] void throw_missing() {
    std::string missing;
    for (int rank = 0; rank < world_; ++rank) {
      if (rank == rank_ || connected(rank)) continue;
      missing += missing.empty() ? "" : ", ";
      missing += std::to_string(rank) + (rank < rank_ ? " (no answer)" : " (has not connected)");
    }
    throw DeadlineExceeded(who() + ": after " + std::to_string((now_ns() - start_ns_) / 1'000'000) +
                           " ms no connection with rank " + missing);
  }

  const int rank_;
  const int world_;
  const std::vector<std::string>& addresses_;
  const Listener& listener_;
  const int64_t start_ns_;
  const int64_t deadline_ns_;
  std::array<char, kGroupTokenBytes> token_{};
  std::vector<Connection> connections_;  // by rank
  std::vector<Dial> dials_;
  std::list<Descriptor> strangers_;  // accepted, of the same user, nothing said yet; oldest first
};

}  // namespace

std::vector<Connection> shake_hands(int rank, int world, const std::vector<std::string>& addresses,
                                    std::string_view token, const Listener& listener,
                                    int64_t deadline_ns) {
  if (world < 1 || rank < 0 || rank >= world) {
    throw InvalidArgument("bootstrap: there is no rank " + std::to_string(rank) +
                          " in a world of " + std::to_string(world));
  }
  if (addresses.size() != static_cast<size_t>(world)) {
    throw InvalidArgument("bootstrap of rank " + std::to_string(rank) + ": " +
                          std::to_string(addresses.size()) + " addresses for " +
                          std::to_string(world) + " ranks");
  }
  if (token.size() != kGroupTokenBytes) {
    throw InvalidArgument("bootstrap of rank " + std::to_string(rank) + ": the token has " +
                          std::to_string(token.size()) + " bytes, not " +
                          std::to_string(kGroupTokenBytes));
  }
  return Handshake(rank, world, addresses, token, listener, deadline_ns).run();
}

}  // namespace symmoe
