// How ranks find each other and keep strangers out.

#include <sched.h>

#include <algorithm>

#include "base/error.h"
#include "check.h"
#include "rank_processes.h"
#include "windows/host_identity.h"
#include "windows/unix_socket.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

constexpr uid_t kNobody = 65534;

Descriptor dial(const std::string& address) {
  Descriptor socket;
  CHECK(unix_socket::connect_to(address, socket) == unix_socket::Connected::kYes);
  return socket;
}

std::string hello_with_token(const std::string& token) {
  std::string text("symmoew\0", 8);
  text += std::string("\1\0\0\0\0\0\0\0", 8) + token;
  text += std::string("\1\0\0\0\2\0\0\0\7\0\0\0\0\0\0\0", 16);
  return text;
}

// Rank 1 of 2 comes only after `strangers` have done their worst to rank 0, and still gets in soon.
void group_forms_despite(const std::function<void(const std::string& address)>& strangers) {
  const SharedMeeting meeting;
  const std::vector<pid_t> ranks = start_ranks(2, *meeting, [&](Rank& self) {
    Listener listener = self.listen();
    const int64_t start = now_ns();
    if (self.rank() == 1) wait_until([&] { return self.note(0).load() == 1; });
    Mesh mesh(self.rank(), 2, self.addresses(), test_token(), std::move(listener),
              now_ns() + kPatience);
    mesh.check(1 - self.rank());
    if (self.rank() == 0) CHECK(now_ns() - start < kPatience / 2);
    self.barrier(0);
    self.note(1).store(1);
  });
  wait_until([&] { return meeting->arrived[63].load() == 2; });
  const pid_t stranger = start_process([&] {
    strangers(meeting->addresses[0].data());
    meeting->notes[0].store(1);
    wait_until([&] { return meeting->notes[1].load() == 1; });
  });
  std::vector<int> statuses;
  for (const pid_t pid : ranks) statuses.push_back(finish_process(pid));
  statuses.push_back(finish_process(stranger));
  for (const int status : statuses) CHECK_EQ(status, 0);
}

void send_text(const Descriptor& socket, const std::string& text, int descriptor = -1) {
  unix_socket::send_packet(socket.get(), text.data(), text.size(), descriptor);
}

}  // namespace

TEST(a_silent_stranger_does_not_disturb) {
  static std::vector<Descriptor> held;
  group_forms_despite([](const std::string& address) { held.push_back(dial(address)); });
}

TEST(hundreds_of_silent_strangers_do_not_disturb) {
  static std::vector<Descriptor> held;
  group_forms_despite([](const std::string& address) {
    for (int i = 0; i < 300; ++i) held.push_back(dial(address));
  });
}

TEST(strangers_that_hang_up_do_not_disturb) {
  group_forms_despite([](const std::string& address) {
    for (int i = 0; i < 50; ++i) dial(address);
  });
}

TEST(garbage_does_not_disturb) {
  static std::vector<Descriptor> held;
  group_forms_despite([](const std::string& address) {
    for (const size_t bytes : {size_t{1}, size_t{47}, size_t{48}, size_t{64}, size_t{100'000}}) {
      held.push_back(dial(address));
      send_text(held.back(), std::string(bytes, 'x'));
      dial(address).reset();
      const Descriptor gone = dial(address);
      send_text(gone, std::string(bytes, '\0'));
    }
    // A descriptor in the greeting is not taken in.
    held.push_back(dial(address));
    send_text(held.back(), "hello", held.back().get());
  });
}

TEST(a_wrong_token_is_refused) {
  group_forms_despite([](const std::string& address) {
    std::string almost = test_token();
    almost.back() = 'x';
    for (const std::string& token : {test_token('?'), almost}) {
      const Descriptor socket = dial(address);
      send_text(socket, hello_with_token(token));
      wait_until([&] { return unix_socket::hung_up(socket.get()); });
      char answer = 0;
      size_t bytes = 0;
      CHECK(unix_socket::receive_packet(socket.get(), &answer, 1, bytes) ==
            unix_socket::Received::kHungUp);
    }
  });
}

TEST(another_user_is_refused_even_with_the_token) {
  if (geteuid() != 0) {
    std::printf("     not run: only root can become another user\n");
    return;
  }
  group_forms_despite([](const std::string& address) {
    const pid_t child = start_process([&] {
      CHECK_EQ(setuid(kNobody), 0);
      const Descriptor socket = dial(address);
      send_text(socket, hello_with_token(test_token()));
      wait_until([&] { return unix_socket::hung_up(socket.get()); });
    });
    CHECK_EQ(finish_process(child), 0);
  });
}

TEST(a_listener_of_another_user_never_gets_the_token) {
  if (geteuid() != 0) {
    std::printf("     not run: only root can become another user\n");
    return;
  }
  run_ranks(2, [](Rank& self) {
    if (self.rank() == 0) CHECK_EQ(setuid(kNobody), 0);
    Listener listener = self.listen();
    if (self.rank() == 1) {
      CHECK_THROWS_WITH(
          Mesh(1, 2, self.addresses(), test_token(), std::move(listener), now_ns() + kPatience),
          SystemError, std::to_string(kNobody));
      self.barrier(0);
    } else {
      Descriptor socket;
      wait_until([&] {
        return unix_socket::accept_from(listener.descriptor(), socket) ==
               unix_socket::Accepted::kYes;
      });
      self.barrier(0);
      char byte = 0;
      size_t bytes = 0;
      CHECK(unix_socket::receive_packet(socket.get(), &byte, 1, bytes) ==
            unix_socket::Received::kHungUp);
    }
  });
}

TEST(ranks_with_different_tokens_do_not_meet) {
  run_ranks(2, [](Rank& self) {
    const std::string token = test_token(self.rank() == 0 ? 'a' : 'b');
    CHECK_THROWS_WITH(self.connect(token, 300 * kMillisecond), Error,
                      "rank " + std::to_string(1 - self.rank()));
  });
}

TEST(missing_ranks_are_named) {
  run_ranks(4, [](Rank& self) {
    Listener listener = self.listen();
    if (self.rank() == 1) {
      CHECK_THROWS_WITH(Mesh(1, 4, self.addresses(), test_token(), std::move(listener),
                             now_ns() + 300 * kMillisecond),
                        DeadlineExceeded, "0 (no answer), 2 (has not connected), 3 (has not");
    }
    self.barrier(0);
  });
}

TEST(an_address_without_listener_is_an_error_at_once) {
  const std::vector<std::string> addresses = {"symmoe-nobody-is-here", ""};
  const int64_t start = now_ns();
  CHECK_THROWS_WITH(Mesh(1, 2, addresses, test_token(), Listener(), now_ns() + kPatience), PeerLost,
                    "rank 0 does not listen");
  CHECK(now_ns() - start < kSecond);
}

TEST(wrong_arguments) {
  const std::vector<std::string> one(1);
  const std::vector<std::string> two(2);
  const auto make = [](int rank, int world, const std::vector<std::string>& addresses,
                       const std::string& token) {
    Mesh(rank, world, addresses, token, Listener(), now_ns() + kSecond);
  };
  make(0, 1, one, test_token());
  CHECK_THROWS(make(0, 2, one, test_token()), InvalidArgument);
  CHECK_THROWS(make(1, 1, one, test_token()), InvalidArgument);
  CHECK_THROWS(make(-1, 1, one, test_token()), InvalidArgument);
  CHECK_THROWS(make(0, 0, {}, test_token()), InvalidArgument);
  CHECK_THROWS_WITH(make(0, 1, one, "short"), InvalidArgument, "5 bytes");
  CHECK_THROWS(make(1, 2, two, test_token()), InvalidArgument);  // the address of rank 0 is empty
}

TEST(worlds_of_different_size_do_not_fit) {
  run_ranks(2, [](Rank& self) {
    Listener listener = self.listen();
    std::vector<std::string> addresses = self.addresses();
    const int world = self.rank() == 0 ? 2 : 3;
    addresses.resize(static_cast<size_t>(world));
    CHECK_THROWS(Mesh(self.rank(), world, addresses, test_token(), std::move(listener),
                      now_ns() + kPatience),
                 Mismatch);
    self.barrier(0);
  });
}

TEST(the_same_rank_twice_does_not_fit) {
  run_ranks(3, [](Rank& self) {
    Listener listener = self.listen();
    const auto connect = [&] {
      Mesh mesh(std::min(self.rank(), 1), 3, self.addresses(), test_token(), std::move(listener),
                now_ns() + kPatience);
    };
    if (self.rank() == 0) {
      CHECK_THROWS_WITH(connect(), Mismatch, "rank 1 of 3");
    } else {
      CHECK_THROWS(connect(), Error);
    }
  });
}

TEST(a_rank_that_dies_during_bootstrap_is_noticed) {
  const SharedMeeting meeting;
  const std::vector<pid_t> pids = start_ranks(3, *meeting, [](Rank& self) {
    Listener listener = self.listen();
    if (self.rank() == 2) {
      sleep_ms(200);
      kill(static_cast<pid_t>(self.note(0).load()), SIGKILL);
      self.barrier(0, 2);
      return;
    }
    if (self.rank() == 1) self.note(0).store(getpid());
    const int64_t start = now_ns();
    CHECK_THROWS_WITH(Mesh(self.rank(), 3, self.addresses(), test_token(), std::move(listener),
                           now_ns() + kPatience),
                      PeerLost, "rank 1");
    CHECK(now_ns() - start < 2 * kSecond);
    self.barrier(0, 2);
  });
  CHECK_EQ(finish_process(pids[0]), 0);
  CHECK(WIFSIGNALED(finish_process(pids[1])));
  CHECK_EQ(finish_process(pids[2]), 0);
}

TEST(host_identity_is_equal_where_windows_can_be_shared) {
  const SharedMeeting meeting;
  const std::string here = host_identity();
  CHECK_MSG(here.find("unreadable") == std::string::npos, here);
  const pid_t child = start_process([&] {
    CHECK_EQ(host_identity(), here);
    if (unshare(CLONE_NEWNET) == 0) CHECK(host_identity() != here);
  });
  CHECK_EQ(finish_process(child), 0);
}

int main(int argc, char** argv) { return run_all(argc, argv); }
