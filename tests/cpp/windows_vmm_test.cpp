// Own windows in device memory, over the host back end: ranks that are processes, and threads.
// tsan

#include "windows/vmm_source.h"

#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>

#include "base/error.h"
#include "board.h"
#include "host_backend.h"
#include "own_process.h"
#include "rank_processes.h"
#include "thread_ranks.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

constexpr size_t kBytes = 300'000;
constexpr size_t kGranule = size_t{2} << 20;

struct VmmRank {
  VmmRank(const Board& board, int number, int ranks)
      : rank(number), world(ranks), device(open_host(number)), agreement(board, number, ranks) {}

  void connect() { source = VmmSource::connect(device, agreement, rank, world, kPatience); }
  unsigned char* at(int peer, const Window& window) const {
    return reinterpret_cast<unsigned char*>(
        const_cast<std::byte*>(source->address(peer, window.ordinal)));
  }

  int rank;
  int world;
  std::shared_ptr<Device> device;
  BoardAgreement agreement;
  std::unique_ptr<VmmSource> source;
};

// Every rank in a process of its own. This process must not use the host back end.
void run_vmm(int world, const std::function<void(VmmRank&, Rank&)>& body) {
  const Board board;
  run_ranks(world, [&](Rank& self) {
    VmmRank rank(board, self.rank(), world);
    body(rank, self);
  });
}

// What a rank holds: after a failure it must be what it was before.
struct Held {
  size_t descriptors = open_descriptors();
  size_t mappings = own_maps();
  size_t bytes = host().live_bytes();

  bool operator==(const Held&) const = default;
  std::string text() const {
    return std::to_string(descriptors) + " descriptors, " + std::to_string(mappings) +
           " mappings, " + std::to_string(bytes) + " bytes";
  }
};

void require_held(const Held& before, const char* when) {
  const Held now;
  CHECK_MSG(now == before, std::string(when) + ": " + now.text() + ", before " + before.text());
}

// Makes a window, and sees that all ranks reach it.
void use_a_window(VmmRank& self, const std::function<void()>& meet, size_t bytes = kBytes) {
  const Window window = self.source->create(bytes);
  CHECK_EQ(window.bytes, bytes);
  CHECK_EQ(self.at(self.rank, window), reinterpret_cast<unsigned char*>(window.base));
  std::memset(window.base, self.rank + 1, bytes);
  meet();
  for (int peer = 0; peer < self.world; ++peer) {
    const unsigned char* const there = self.at(peer, window);
    CHECK_EQ(there[0], peer + 1);
    CHECK_EQ(there[bytes - 1], peer + 1);
  }
  meet();
  // Each writes into all, as kernels write their flags.
  for (int peer = 0; peer < self.world; ++peer) {
    self.at(peer, window)[self.rank] = static_cast<unsigned char>(100 + self.rank);
  }
  meet();
  for (int peer = 0; peer < self.world; ++peer) {
    CHECK_EQ(std::to_integer<int>(window.base[peer]), 100 + peer);
  }
  meet();
  self.source->drop(window);
  CHECK_THROWS_WITH(self.source->address(0, window.ordinal), InvalidArgument, "there is no window");
}

}  // namespace

TEST(ranks_reach_each_others_windows_and_leave_nothing) {
  for (const int world : {1, 2, 3, 4}) {
    run_vmm(world, [](VmmRank& self, Rank& rank) {
      const Held before;
      self.connect();
      const Held connected;
      size_t barrier = 0;
      const auto meet = [&] { rank.barrier(barrier++); };
      for (const size_t bytes : {size_t{64}, kBytes, kGranule, kGranule + 1}) {
        use_a_window(self, meet, bytes);
        CHECK_EQ(self.source->mapped_bytes(), size_t{0});
        require_held(connected, "after a window");
      }
      const Window first = self.source->create(kBytes);
      const Window second = self.source->create(kBytes);
      CHECK_EQ(second.ordinal, first.ordinal + 1);
      CHECK_EQ(self.source->mapped_bytes(), 2 * kBytes * static_cast<size_t>(self.world - 1));
      meet();
      self.source.reset();
      CHECK_EQ(host().live_bytes(), 2 * kGranule);  // `first` and `second` hold their memory
      std::memset(first.base, 1, kBytes);
    });
  }
}

// In a process of its own: the others' ranks could not be forked from one that has streams.
TEST(threads_see_each_others_windows_at_one_address) {
  const pid_t child = start_process([] {
    const Board board;
    Meeting meeting;
    CHECK(run_threads(3, [&](int number) {
      VmmRank self(board, number, 3);
      self.connect();
      size_t barrier = 0;
      const Rank rank(number, 3, meeting);
      use_a_window(self, [&] { rank.barrier(barrier++); });
      const Window window = self.source->create(kBytes);
      meeting.notes[static_cast<size_t>(number)] = reinterpret_cast<int64_t>(window.base);
      rank.barrier(barrier++);
      for (int peer = 0; peer < 3; ++peer) {
        CHECK_EQ(reinterpret_cast<int64_t>(self.at(peer, window)),
                 meeting.notes[static_cast<size_t>(peer)].load());
      }
      rank.barrier(barrier++);
    }));
    CHECK_EQ(own_maps(), size_t{0});
    CHECK_EQ(host().live_bytes(), size_t{0});
  });
  CHECK_EQ(finish_process(child), 0);
}

TEST(a_call_that_fails_on_one_rank_fails_on_all_and_leaves_nothing) {
  struct Case {
    const char* call;
    int nth;
    int status;
    const char* words;
  };
  const Case cases[] = {
      {"allocate_shared", 1, kDeviceOutOfMemory, "shared device memory of 300000 bytes"},
      {"allocate_shared", 1, kVendorStatus + 1, "shared device memory of 300000 bytes"},
      {"map_shared", 1, kDeviceOutOfMemory, "mapping of a peer's 300000 bytes"},
      {"map_shared", 2, kVendorStatus + 1, "mapping of a peer's 300000 bytes"},
  };
  for (const Case& each : cases) {
    for (int failing = 0; failing < 3; ++failing) {
      run_vmm(3, [&](VmmRank& self, Rank& rank) {
        self.connect();
        const Held before;
        if (self.rank == failing) host().fail(each.call, each.nth, each.status);
        const std::string words = "rank " + std::to_string(failing) + ": ";
        if (std::strcmp(each.call, "allocate_shared") == 0) {
          CHECK_THROWS_WITH(self.source->create(kBytes), OutOfMemory, words + each.words);
        } else {
          CHECK_THROWS_WITH(self.source->create(kBytes), Unavailable, words);
          if (self.rank == failing) host().fail(each.call, each.nth, each.status);
          CHECK_THROWS_WITH(self.source->create(kBytes), Unavailable, each.words);
        }
        rank.barrier(0);
        require_held(before, each.call);
        CHECK_EQ(self.source->mapped_bytes(), size_t{0});
        size_t barrier = 1;
        use_a_window(self, [&] { rank.barrier(barrier++); });
      });
    }
  }
}

TEST(a_rank_without_memory) {
  run_vmm(3, [](VmmRank& self, Rank& rank) {
    self.connect();
    if (self.rank == 1) host().limit_memory(kGranule);
    const Window window = self.source->create(kBytes);
    CHECK_THROWS_WITH(self.source->create(kBytes), OutOfMemory, "rank 1: ");
    host().limit_memory(0);
    size_t barrier = 0;
    use_a_window(self, [&] { rank.barrier(barrier++); });
  });
}

#ifndef __SANITIZE_ADDRESS__  // whose checks of types need descriptors themselves
TEST(a_rank_without_descriptors) {
  run_vmm(3, [](VmmRank& self, Rank& rank) {
    self.connect();
    const Held before;
    rlimit limits{};
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limits), 0);
    const rlimit ordinary = limits;
    const int lowest = dup(STDERR_FILENO);
    close(lowest);
    limits.rlim_cur = static_cast<rlim_t>(lowest) + 1;  // room for the own descriptor alone
    if (self.rank == 2) CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limits), 0);
    CHECK_THROWS_WITH(self.source->create(kBytes), Unavailable, "rank 2: ");
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &ordinary), 0);
    rank.barrier(0);
    require_held(before, "without descriptors");
    size_t barrier = 1;
    use_a_window(self, [&] { rank.barrier(barrier++); });
  });
}
#endif

TEST(what_forbids_own_windows_is_known_to_all_ranks) {
  for (int failing = 0; failing < 3; ++failing) {
    for (const int nth : {1, 2, 4}) {  // the own device, then the way to each rank's
      run_vmm(3, [&](VmmRank& self, Rank&) {
        const Held before;
        if (self.rank == failing) host().fail("shared_refusal", nth, kVendorStatus + 1);
        CHECK_THROWS_WITH(self.connect(), Unavailable,
                          "rank " + std::to_string(failing) + ": question whether memory");
        require_held(before, "refused");
        self.connect();  // another attempt is as good as the first
      });
    }
  }
  run_vmm(3, [](VmmRank& self, Rank&) {
    const Held before;
    if (self.rank == 1) {
      self.agreement.change = [](std::string text) {
        if (const size_t at = text.find("boot="); at != std::string::npos) {
          text.replace(at, 5, "boot=x");
        }
        return text;
      };
    }
    CHECK_THROWS_WITH(self.connect(), Unavailable, "ranks 0 and 1 are not on one host");
    require_held(before, "on different hosts");
  });
}

TEST(a_peer_that_dies_is_noticed) {
  for (const bool while_creating : {false, true}) {
    const Board board;
    const SharedMeeting meeting;
    const std::vector<pid_t> pids = start_ranks(3, *meeting, [&](Rank& rank) {
      VmmRank self(board, rank.rank(), 3);
      self.connect();
      const Window window = self.source->create(kBytes);
      rank.barrier(0);
      if (self.rank == 1) {
        // Before it has allocated, or with its part done and the others waiting for its word.
        self.agreement.before = [&, left = while_creating ? 2 : 1](const std::string&) mutable {
          if (--left > 0) return;
          board.leave(1);
          raise(SIGKILL);
        };
        self.source->create(kBytes);
      }
      const int64_t start = now_ns();
      CHECK_THROWS_WITH(self.source->create(kBytes), PeerLost, "rank 1");
      CHECK(now_ns() - start < 20 * kSecond);
      rank.barrier(1, 2);  // who has noticed first does not leave before the other has
      // What the dead rank had is still here, and goes in the ordinary way.
      CHECK_EQ(std::to_integer<int>(self.source->address(1, window.ordinal)[0]), 0xFF);
      self.source->drop(window);
      CHECK_EQ(self.source->mapped_bytes(), size_t{0});
    });
    CHECK_EQ(finish_process(pids[0]), 0);
    CHECK(WIFSIGNALED(finish_process(pids[1])));
    CHECK_EQ(finish_process(pids[2]), 0);
  }
}

TEST(a_peer_that_dies_before_it_gives_its_descriptor_is_noticed) {
  const Board board;
  const SharedMeeting meeting;
  const std::vector<pid_t> pids = start_ranks(3, *meeting, [&](Rank& rank) {
    VmmRank self(board, rank.rank(), 3);
    self.connect();
    const Held before;
    rank.barrier(0);
    if (self.rank == 2) {
      agree(self.agreement, 2, "window ordinal=1 bytes=300000", "");
      raise(SIGKILL);
    }
    CHECK_THROWS_WITH(self.source->create(kBytes), PeerLost, "rank 2");
    require_held(before, "without rank 2");
    rank.barrier(1, 2);  // who has noticed first does not leave before the other has
  });
  CHECK_EQ(finish_process(pids[0]), 0);
  CHECK_EQ(finish_process(pids[1]), 0);
  CHECK(WIFSIGNALED(finish_process(pids[2])));
}

TEST(windows_are_made_while_a_stream_is_in_a_capture) {
  run_vmm(2, [](VmmRank& self, Rank& rank) {
    self.connect();
    const Stream stream(self.device);
    CHECK_EQ(host().begin_capture(stream.handle(), kCaptureGlobal), int{kDeviceOk});
    size_t barrier = 0;
    use_a_window(self, [&] { rank.barrier(barrier++); });
    CHECK(self.device->capture_state(stream.handle()).active);
    HostGraph graph = nullptr;
    CHECK_EQ(host().end_capture(stream.handle(), &graph), int{kDeviceOk});
    CHECK_EQ(host().destroy_graph(graph), int{kDeviceOk});
  });
}

TEST(a_fork_has_none_of_it) {
  run_vmm(2, [](VmmRank& self, Rank& rank) {
    self.connect();
    const Window window = self.source->create(kBytes);
    const pid_t child = start_process([&] {
      CHECK_THROWS(self.source->create(kBytes), Closed);
      self.source->drop(window);
      self.source.reset();
    });
    CHECK_EQ(finish_process(child), 0);
    rank.barrier(0);
    size_t barrier = 1;
    use_a_window(self, [&] { rank.barrier(barrier++); });
  });
}

int main(int argc, char** argv) { return run_all(argc, argv); }
