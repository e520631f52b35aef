// How a rank notices that a peer is gone, and what a fork of it may not do.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <fstream>
#include <memory>
#include <thread>

#include "base/error.h"
#include "check.h"
#include "rank_processes.h"
#include "windows/fork_guard.h"
#include "windows/memfd_source.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

// Waits until the mesh says that `rank` is lost, and gives its words.
std::string wait_for_loss(Mesh& mesh, int rank) {
  std::string words;
  wait_until([&] {
    try {
      mesh.check(rank);
      return false;
    } catch (const PeerLost& error) {
      words = error.what();
      return true;
    }
  });
  return words;
}

size_t own_sockets() {
  size_t count = 0;
  for (int descriptor = 0; descriptor < 256; ++descriptor) {
    const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
    char target[64] = {};
    if (readlink(path.c_str(), target, sizeof(target) - 1) > 0) {
      count += std::strncmp(target, "socket:", 7) == 0 || std::strstr(target, "pidfd") != nullptr;
    }
  }
  return count;
}

}  // namespace

TEST(a_killed_peer_is_noticed_and_leaves_nothing) {
  const SharedMeeting meeting;
  const std::vector<pid_t> pids = start_ranks(4, *meeting, [](Rank& self) {
    Mesh mesh = self.connect();
    MemfdSource source(mesh, kPatience);
    source.create(1 << 20);
    if (self.rank() == 2) {
      self.note(0).store(getpid());
      self.barrier(0);
      for (;;) pause();
    }
    self.barrier(0);
    // Messages that wait in the socket are not a death.
    for (int rank = 0; rank < 4; ++rank) mesh.check(rank);
    self.barrier(3, 3);
    if (self.rank() == 0) {
      self.note(1).store(now_ns());
      kill(static_cast<pid_t>(self.note(0).load()), SIGKILL);
    }
    wait_until([&] { return self.note(1).load() != 0; });
    CHECK_EQ(wait_for_loss(mesh, 2),
             "rank 2 (pid " + std::to_string(self.note(0).load()) + ") ended");
    CHECK(now_ns() - self.note(1).load() < kSecond);
    CHECK(source.address(2, 1) != nullptr);  // was announced before
    const int64_t start = now_ns();
    CHECK_THROWS_WITH(source.address(2, 2), PeerLost, "rank 2");
    CHECK_THROWS_WITH(mesh.send(2, {Message::Kind::kDrop, 1, 0}, -1, now_ns() + kPatience, [] {}),
                      PeerLost, "rank 2");
    CHECK(now_ns() - start < kSecond);
    self.barrier(1, 3);
    for (int rank : {0, 1, 3}) mesh.check(rank);
    self.barrier(2, 3);
  });
  for (const pid_t pid : pids) finish_process(pid);
  for (const auto& address : meeting->addresses) {
    std::ifstream file("/proc/net/unix");
    for (std::string line; std::getline(file, line);) {
      CHECK(address[0] == 0 || line.find(address.data()) == std::string::npos);
    }
  }
  CHECK_EQ(meeting->arrived[2].load(), 3);
}

TEST(a_sender_that_waits_notices_the_death) {
  const SharedMeeting meeting;
  const std::vector<pid_t> pids = start_ranks(2, *meeting, [](Rank& self) {
    Mesh mesh = self.connect();
    MemfdSource source(mesh, kPatience);
    if (self.rank() == 1) {
      sleep_ms(500);
      raise(SIGKILL);
    }
    const auto create_many = [&] {
      for (int i = 0; i < 2000; ++i) source.create(64);
    };
    CHECK_THROWS_WITH(create_many(), PeerLost, "rank 1");
  });
  CHECK_EQ(finish_process(pids[0]), 0);
  CHECK(WIFSIGNALED(finish_process(pids[1])));
}

TEST(a_clean_close_is_told_from_a_death_and_loses_no_announcement) {
  run_ranks(2, [](Rank& self) {
    Mesh mesh = self.connect();
    MemfdSource source(mesh, kPatience);
    if (self.rank() == 1) {
      for (int i = 0; i < 3; ++i) source.create(1000);
      mesh.close();
      mesh.close();
      CHECK_THROWS(source.create(10), Closed);
      CHECK_THROWS(mesh.check(0), Closed);
      CHECK_THROWS(mesh.receive(0), Closed);
      self.barrier(0);
    } else {
      self.barrier(0);
      const std::string words = wait_for_loss(mesh, 1);
      CHECK_MSG(words.find("closed the group") != std::string::npos, words);
      CHECK(source.address(1, 3) != nullptr);
      CHECK(source.address(1, 1) != nullptr);
      CHECK_THROWS_WITH(source.address(1, 4), PeerLost, "closed the group");
      // What this rank still had to say goes nowhere, which is no signal and no crash.
      CHECK_THROWS(source.create(10), PeerLost);
    }
    self.barrier(1);
  });
}

TEST(check_from_several_threads) {
  run_ranks(2, [](Rank& self) {
    Mesh mesh = self.connect();
    self.barrier(0);
    if (self.rank() == 1) return;
    std::atomic<int> seen = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back(
          [&] { seen += wait_for_loss(mesh, 1).find("closed the group") != std::string::npos; });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(seen.load(), 4);
  });
}

namespace {

// Rank 1 leaves a child behind, made by `make_child`, and is killed; rank 0 must notice.
void child_does_not_hide_the_death(const std::function<pid_t()>& make_child) {
  const SharedMeeting meeting;
  const std::vector<pid_t> pids = start_ranks(2, *meeting, [&](Rank& self) {
    Mesh mesh = self.connect();
    if (self.rank() == 1) {
      const pid_t child = make_child();
      if (child == 0) {
        for (;;) pause();
      }
      self.note(0).store(child);
      raise(SIGKILL);
    }
    const int64_t start = now_ns();
    const std::string words = wait_for_loss(mesh, 1);
    CHECK_MSG(words.find("ended") != std::string::npos, words);
    CHECK(now_ns() - start < 5 * kSecond);
  });
  const int status = finish_process(pids[0]);
  CHECK(WIFSIGNALED(finish_process(pids[1])));
  kill(static_cast<pid_t>(meeting->notes[0].load()), SIGKILL);
  CHECK_EQ(status, 0);
}

}  // namespace

TEST(a_forked_child_does_not_hide_the_death) {
  child_does_not_hide_the_death([] { return fork(); });
}

TEST(a_child_that_kept_the_sockets_does_not_hide_the_death) {
  // Behind the back of the C library, so that no handler closes the sockets: only the pidfd is
  // left.
  child_does_not_hide_the_death(
      [] { return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)); });
}

TEST(a_fork_cannot_use_the_group_and_does_no_harm) {
  run_ranks(2, [](Rank& self) {
    std::unique_ptr<Mesh> mesh(new Mesh(self.connect()));
    auto source = std::make_unique<MemfdSource>(*mesh, kPatience);
    Window window = source->create(4096);
    source->address(1 - self.rank(), 1);
    const uint64_t generation = fork_generation();
    CHECK(own_sockets() > 0);
    const pid_t child = start_process([&] {
      CHECK_EQ(own_sockets(), size_t{0});
      CHECK(fork_generation() != generation);
      CHECK_THROWS_WITH(mesh->check(1 - self.rank()), Closed, "fork");
      CHECK_THROWS(mesh->receive(1 - self.rank()), Closed);
      CHECK_THROWS(source->create(64), Closed);
      // Numbers and addresses of the parent may be used anew here.
      const int reused = open("/dev/null", O_RDONLY | O_CLOEXEC);
      void* const mapped = mmap(window.base, 4096, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      CHECK(mapped == window.base);
      window = {};
      source.reset();
      mesh.reset();
      static_cast<volatile char*>(mapped)[0] = 1;
      CHECK(fcntl(reused, F_GETFD) >= 0);
      const pid_t grandchild = start_process([&] { CHECK(fork_generation() != generation); });
      CHECK_EQ(finish_process(grandchild), 0);
    });
    CHECK_EQ(finish_process(child), 0);
    self.barrier(0);
    mesh->check(1 - self.rank());
    source->create(64);
    source->address(1 - self.rank(), 2);
    CHECK_EQ(fork_generation(), generation);
    self.barrier(1);
  });
}

int main(int argc, char** argv) { return run_all(argc, argv); }
