// Windows and control segments between real processes.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <set>
#include <thread>

#include "base/error.h"
#include "check.h"
#include "own_process.h"
#include "rank_processes.h"
#include "windows/control.h"
#include "windows/memfd_source.h"
#include "windows/shared_memory.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

std::set<std::string> shm_entries() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().find("symmoe") != std::string::npos) {
      names.insert(entry.path());
    }
  }
  return names;
}

std::byte pattern(int rank, uint32_t ordinal, size_t at, int round) {
  return static_cast<std::byte>(static_cast<size_t>(rank) * 31 + ordinal * 7 + at * 3 +
                                static_cast<size_t>(round) * 101);
}

void fill(const Window& window, int rank, int round) {
  for (size_t i = 0; i < window.bytes; ++i) {
    window.base[i] = pattern(rank, window.ordinal, i, round);
  }
}

size_t wrong_bytes(const std::byte* data, size_t bytes, int rank, uint32_t ordinal, int round) {
  size_t wrong = 0;
  for (size_t i = 0; i < bytes; ++i) wrong += data[i] != pattern(rank, ordinal, i, round);
  return wrong;
}

}  // namespace

namespace {

void everybody_sees_everything(Rank& self) {
  const size_t descriptors = open_descriptors();
  {
    Mesh mesh = self.connect();
    const Control control(mesh, 4096, now_ns() + kPatience);
    control.base(self.rank())[self.rank()] = static_cast<std::byte>(self.rank() + 1);
    MemfdSource source(mesh, kPatience);
    const Window small = source.create(3000);
    const Window large = source.create((size_t{3} << 20) + 17);
    CHECK_EQ(small.ordinal, 1u);
    CHECK_EQ(large.ordinal, 2u);
    for (int round = 0; round < 3; ++round) {
      fill(small, self.rank(), round);
      fill(large, self.rank(), round);
      self.barrier(static_cast<size_t>(2 * round));
      for (int rank = 0; rank < self.world(); ++rank) {
        for (const Window& like : {small, large}) {
          const std::byte* const data = source.address(rank, like.ordinal);
          CHECK_EQ(reinterpret_cast<uintptr_t>(data) % SharedMemory::kAlignment, uintptr_t{0});
          CHECK_EQ(wrong_bytes(data, like.bytes, rank, like.ordinal, round), size_t{0});
        }
        CHECK(control.base(rank)[rank] == static_cast<std::byte>(rank + 1));
        // Waiters count themselves in the line of the rank they wait for.
        if (round == 2) control.base(rank)[64 + self.rank()] = std::byte{9};
      }
      self.barrier(static_cast<size_t>(2 * round + 1));
    }
    for (int rank = 0; rank < self.world(); ++rank) {
      CHECK(control.base(self.rank())[64 + rank] == std::byte{9});
    }
    CHECK(source.address(self.rank(), 1) == small.base);
    CHECK_EQ(source.mapped_bytes(),
             static_cast<size_t>(self.world() - 1) * (small.bytes + large.bytes));
    // Only sockets and pidfds are open any more, no memory.
    CHECK(open_descriptors() <= descriptors + 2 * static_cast<size_t>(self.world() - 1));
    self.barrier(10);
  }
  self.barrier(11);
  CHECK_EQ(open_descriptors(), descriptors);
  CHECK_EQ(own_maps(), size_t{0});
  for (const std::string& address : self.addresses()) {
    CHECK_EQ(lines_with("/proc/net/unix", address), size_t{0});
  }
  CHECK(shm_entries().empty());
}

}  // namespace

TEST(one_rank) { run_ranks(1, everybody_sees_everything); }
TEST(two_ranks) { run_ranks(2, everybody_sees_everything); }
TEST(four_ranks) { run_ranks(4, everybody_sees_everything); }
TEST(eight_ranks) { run_ranks(8, everybody_sees_everything); }

TEST(ranks_under_a_storm_of_signals) {
  run_ranks(4, [](Rank& self) {
    struct sigaction action{};
    action.sa_handler = [](int) {};  // without SA_RESTART: every call is interrupted
    sigaction(SIGALRM, &action, nullptr);
    const itimerval often{{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, nullptr);
    everybody_sees_everything(self);
  });
}

TEST(growth_reaches_an_idle_peer) {
  run_ranks(2, [](Rank& self) {
    Mesh mesh = self.connect();
    MemfdSource source(mesh, kPatience);
    if (self.rank() == 0) {
      for (const size_t bytes : {size_t{100}, size_t{10'000}, size_t{8} << 20}) {
        fill(source.create(bytes), 0, 0);
      }
      self.barrier(0);
    } else {
      self.barrier(0);
      CHECK_EQ(source.mapped_bytes(), size_t{0});
      CHECK_EQ(wrong_bytes(source.address(0, 3), size_t{8} << 20, 0, 3, 0), size_t{0});
      CHECK_EQ(wrong_bytes(source.address(0, 1), 100, 0, 1, 0), size_t{0});
      CHECK_EQ(source.mapped_bytes(), (size_t{8} << 20) + 10'100);
    }
    self.barrier(1);
  });
}

TEST(address_waits_for_a_window_that_comes_later) {
  run_ranks(2, [](Rank& self) {
    Mesh mesh = self.connect();
    MemfdSource source(mesh, kPatience);
    if (self.rank() == 0) {
      sleep_ms(150);
      fill(source.create(5000), 0, 0);
      self.barrier(0);
    } else {
      const std::byte* const data = source.address(0, 1);
      self.barrier(0);
      CHECK_EQ(wrong_bytes(data, 5000, 0, 1, 0), size_t{0});
    }
    self.barrier(1);
  });
}

TEST(a_full_queue_makes_the_owner_wait_not_fail) {
  constexpr int64_t kWindows = 1000;
  run_ranks(2, [](Rank& self) {
    Mesh mesh = self.connect();
    MemfdSource source(mesh, kPatience);
    if (self.rank() == 0) {
      for (int64_t i = 0; i < kWindows; ++i) {
        fill(source.create(64), 0, 0);
        self.note(0).store(i + 1);
      }
    } else {
      int64_t seen = -1;
      while (seen != self.note(0).load()) {  // until the owner makes no progress
        seen = self.note(0).load();
        sleep_ms(200);
      }
      CHECK_MSG(seen < kWindows, "the queue never filled: the test shows nothing");
      // What a rank does that waits for a flag lets the peer get on, a little.
      mesh.check(0);
      wait_until([&] { return self.note(0).load() > seen; });
      CHECK(source.address(0, kWindows) != nullptr);
      wait_until([&] { return self.note(0).load() == kWindows; });
      for (uint32_t ordinal = 1; ordinal <= kWindows; ++ordinal) {
        CHECK_EQ(wrong_bytes(source.address(0, ordinal), 64, 0, ordinal, 0), size_t{0});
      }
    }
    self.barrier(0);
  });
}

TEST(two_ranks_that_fill_each_other_s_queue_both_get_on) {
  constexpr uint32_t kWindows = 400;
  run_ranks(2, [](Rank& self) {
    Mesh mesh = self.connect();
    MemfdSource source(mesh, kPatience);
    for (uint32_t i = 0; i < kWindows; ++i) source.create(64);
    self.note(static_cast<size_t>(self.rank())).store(1);
    wait_until([&] {
      source.refresh();
      return self.note(static_cast<size_t>(1 - self.rank())).load() == 1;
    });
    source.refresh();
    CHECK_EQ(source.mapped_bytes(), size_t{64} * kWindows);
    self.barrier(1);
  });
}

TEST(a_peer_that_never_reads_is_named_at_the_deadline) {
  run_ranks(2, [](Rank& self) {
    Mesh mesh = self.connect();
    MemfdSource source(mesh, 300 * kMillisecond);
    if (self.rank() == 0) {
      const auto create_many = [&] {
        for (int i = 0; i < 1000; ++i) source.create(64);
      };
      CHECK_THROWS_WITH(create_many(), DeadlineExceeded, "rank 1");
    }
    self.barrier(0);
  });
}

TEST(a_window_that_never_comes_is_named_at_the_deadline) {
  run_ranks(2, [](Rank& self) {
    Mesh mesh = self.connect();
    MemfdSource source(mesh, 100 * kMillisecond);
    const int other = 1 - self.rank();
    CHECK_THROWS_WITH(source.address(other, 7), DeadlineExceeded,
                      "window 7 of rank " + std::to_string(other));
    CHECK_THROWS(source.address(self.rank(), 1), InvalidArgument);
    CHECK_THROWS(source.address(2, 1), InvalidArgument);
    CHECK_THROWS(source.address(-1, 1), InvalidArgument);
    self.barrier(0);
  });
}

TEST(drop_gives_the_memory_back_on_all_ranks) {
  run_ranks(2, [](Rank& self) {
    Mesh mesh = self.connect();
    MemfdSource source(mesh, kPatience);
    Window window = source.create(size_t{64} << 20);
    source.address(1 - self.rank(), 1);
    CHECK_EQ(own_maps(), size_t{2});
    self.barrier(0);
    source.drop(window);
    self.barrier(1);
    source.refresh();
    CHECK_EQ(source.mapped_bytes(), size_t{0});
    CHECK_EQ(own_maps(), size_t{1});  // `window` still holds the memory
    fill(window, 0, 0);
    window = {};
    // Nobody maps it and nobody has a descriptor of it: the kernel has freed it.
    CHECK_EQ(own_maps(), size_t{0});
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;  // the iterator's own descriptor
      const auto target = std::filesystem::read_symlink(entry.path(), gone);
      CHECK(target.string().find("memfd:symmoe") == std::string::npos);
    }
    CHECK_THROWS_WITH(source.address(1 - self.rank(), 1), Error, "dropped");
    CHECK_THROWS(source.address(self.rank(), 1), Error);
    CHECK_THROWS(source.drop({1, nullptr, 0, nullptr}), InvalidArgument);
    CHECK_THROWS(source.drop({2, nullptr, 0, nullptr}), InvalidArgument);
    CHECK_EQ(source.create(64).ordinal, 2u);  // an ordinal is never used again
    self.barrier(2);
  });
}

TEST(memory_outlives_its_source_while_somebody_holds_it) {
  run_ranks(2, [](Rank& self) {
    std::shared_ptr<void> kept;
    {
      Mesh mesh = self.connect();
      MemfdSource source(mesh, kPatience);
      const Window window = source.create(4096);
      fill(window, 0, 0);
      kept = window.memory;
      self.barrier(0);
    }
    CHECK_EQ(own_maps(), size_t{1});
    kept.reset();
    CHECK_EQ(own_maps(), size_t{0});
  });
}

TEST(out_of_memory_changes_nothing) {
  run_ranks(2, [](Rank& self) {
    Mesh mesh = self.connect();
    MemfdSource source(mesh, kPatience);
    CHECK_THROWS(source.create(size_t{1} << 50), OutOfMemory);
    CHECK_EQ(source.create(100).ordinal, 1u);
    source.address(1 - self.rank(), 1);
    self.barrier(0);
  });
}

// The peer has the memory, this rank cannot map it: nothing that a smaller window of its own would
// help, so not OutOfMemory.
TEST(a_peer_s_window_that_cannot_be_mapped_is_a_system_error) {
  constexpr size_t kTooLarge = size_t{1}
                               << 48;  // more than the address space; no page of it exists
  run_ranks(2, [](Rank& self) {
    Mesh mesh = self.connect();
    if (self.rank() == 1) {
      const Descriptor file(memfd_create("symmoe:test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      CHECK_EQ(ftruncate(file.get(), static_cast<off_t>(kTooLarge)), 0);
      CHECK_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK), 0);
      for (uint32_t ordinal = 1; ordinal <= 2; ++ordinal) {
        mesh.send(0, {Message::Kind::kNew, ordinal, kTooLarge}, file.get(), now_ns() + kPatience,
                  [] {});
      }
      self.barrier(0);
    } else {
      MemfdSource source(mesh, kPatience);
      self.barrier(0);
      const std::string size = " (" + std::to_string(kTooLarge) + " bytes)";
      CHECK_THROWS_WITH(source.address(1, 1), SystemError,
                        "rank 0 cannot map window 1 of rank 1" + size);
      CHECK_THROWS_WITH(source.refresh(), SystemError, "cannot map window 2 of rank 1" + size);
      CHECK_EQ(source.mapped_bytes(), size_t{0});
    }
    self.barrier(1);
  });
}

TEST(a_window_that_could_not_be_announced_is_gone) {
  run_ranks(2, [](Rank& self) {
    Mesh mesh = self.connect();
    if (self.rank() == 1) {
      mesh.close();
      self.barrier(0);
    } else {
      MemfdSource source(mesh, kPatience);
      self.barrier(0);
      CHECK_THROWS_WITH(source.create(5000), PeerLost, "rank 1");
      CHECK_THROWS_WITH(source.address(0, 1), InvalidArgument, "never created");
      CHECK_EQ(own_maps(), size_t{0});
    }
    self.barrier(1);
  });
}

TEST(lanes_on_several_threads) {
  constexpr int kThreads = 4;
  constexpr uint32_t kEach = 20;
  run_ranks(2, [](Rank& self) {
    Mesh mesh = self.connect();
    MemfdSource source(mesh, kPatience);
    std::atomic<int> failures = 0;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&] {
        try {
          for (uint32_t i = 0; i < kEach; ++i) {
            const Window window = source.create(4096);
            window.base[0] = std::byte{5};
            mesh.check(1 - self.rank());
            if (i % 3 == 0) source.refresh();
          }
          for (uint32_t ordinal = 1; ordinal <= kThreads * kEach; ++ordinal) {
            if (source.address(1 - self.rank(), ordinal) == nullptr) ++failures;
          }
        } catch (const std::exception& error) {
          std::fprintf(stderr, "rank %d: %s\n", self.rank(), error.what());
          ++failures;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(failures.load(), 0);
    self.barrier(0);
    for (const int rank : {0, 1}) {
      for (uint32_t ordinal = 1; ordinal <= kThreads * kEach; ++ordinal) {
        CHECK(source.address(rank, ordinal)[0] == std::byte{5});
      }
    }
    self.barrier(1);
  });
}

TEST(control_segments_of_different_sizes_do_not_fit) {
  run_ranks(2, [](Rank& self) {
    Mesh mesh = self.connect();
    const size_t bytes = self.rank() == 0 ? 4096 : 8192;
    CHECK_THROWS_WITH(Control(mesh, bytes, now_ns() + kPatience), Mismatch, "8192");
    self.barrier(0);
  });
}

TEST(control_names_the_rank_that_does_not_come) {
  run_ranks(2, [](Rank& self) {
    Mesh mesh = self.connect();
    if (self.rank() == 0) {
      CHECK_THROWS_WITH(Control(mesh, 4096, now_ns() + 50 * kMillisecond), DeadlineExceeded,
                        "from rank 1");
    }
    self.barrier(0);
  });
}

int main(int argc, char** argv) { return run_all(argc, argv); }
