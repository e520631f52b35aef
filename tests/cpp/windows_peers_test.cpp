// What own kernels see of the peers' windows, over both sources: tables in device memory, which
// here is the host's, so that the test reads them as a kernel would. tsan

#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "base/error.h"
#include "board.h"
#include "nccl_ranks.h"
#include "own_process.h"
#include "thread_ranks.h"
#include "windows/nccl_source.h"
#include "windows/peer_windows.h"
#include "windows/vmm_source.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

constexpr PeerLayout kLayout{
    .max_ranks = 8, .ordinals = 4, .roles = 2, .lanes = 3, .page_bytes = 4096};
constexpr size_t kBytes = 100'000;

enum class By { kVmm, kNccl };

// One rank with a source of either kind.
struct PeerRank {
  PeerRank(By by, const Board& board, const Communicator::Id& id, int number, int ranks)
      : rank(number), world(ranks), device(open_host(number)), agreement(board, number, ranks) {
    if (by == By::kVmm) {
      source = VmmSource::connect(device, agreement, rank, world, kPatience);
    } else {
      communicator = std::make_shared<Communicator>(fake_library(), device, id, rank, world);
      source = std::make_unique<NcclSource>(device, communicator, &agreement);
    }
    make(kLayout);
  }
  ~PeerRank() {
    peers.reset();
    source.reset();
  }
  PeerRank(const PeerRank&) = delete;
  PeerRank& operator=(const PeerRank&) = delete;

  void make(const PeerLayout& layout) {
    peers = std::make_unique<PeerWindows>(device, *source, agreement, rank, world, layout);
  }
  const void* entry(uint32_t ordinal, int peer) const {
    return peers->windows()[ordinal % kLayout.ordinals * static_cast<uint32_t>(world) +
                            static_cast<uint32_t>(peer)];
  }
  unsigned char* page(int role, int lane, int peer) const {
    return static_cast<unsigned char*>(peers->pages(role, lane)[peer]);
  }

  int rank;
  int world;
  std::shared_ptr<Device> device;
  BoardAgreement agreement;
  std::shared_ptr<Communicator> communicator;
  std::unique_ptr<WindowSource> source;
  std::unique_ptr<PeerWindows> peers;
};

using Body = std::function<void(PeerRank&, const Rank&)>;

void run_peers(By by, int world, const Body& body) {
  const Board board;
  const SharedId id;
  run_ranks(world, [&](Rank& meet) {
    PeerRank self(by, board, id.get(meet, 62), meet.rank(), world);
    body(self, meet);
  });
}

// In a process of its own: ranks of the other tests could not be forked from one that has streams.
void run_peer_threads(By by, int world, const Body& body) {
  const pid_t child = start_process([&] {
    const Board board;
    const auto meeting = std::make_unique<Meeting>();
    const Communicator::Id id = Communicator::make_id(*fake_library());
    CHECK(run_threads(world, [&](int number) {
      PeerRank self(by, board, id, number, world);
      body(self, Rank(number, world, *meeting));
    }));
    CHECK_EQ(lines_with("/proc/self/maps", "symmoe host device memory"), size_t{0});
    CHECK_EQ(fake_live().windows, size_t{0});
    CHECK_EQ(host().live_bytes(), size_t{0});
  });
  CHECK_EQ(finish_process(child), 0);
}

// The tables against what the ranks write into their windows and pages.
void use_tables(PeerRank& self, const Rank& meet) {
  self.peers->start("");
  CHECK_EQ(self.peers->refusal(), "");
  for (uint32_t row = 0; row < kLayout.ordinals; ++row) CHECK(self.entry(row, 0) == nullptr);

  const auto place = [&](int role, int lane) {
    return static_cast<size_t>(role * kLayout.lanes + lane) * kLayout.page_bytes;
  };
  for (int role = 0; role < kLayout.roles; ++role) {
    for (int lane = 0; lane < kLayout.lanes; ++lane) {
      for (int peer = 0; peer < self.world; ++peer) {
        CHECK_EQ(self.page(role, lane, peer), self.page(0, 0, peer) + place(role, lane));
        for (size_t byte = 0; byte < kLayout.page_bytes; ++byte) {
          CHECK_EQ(self.page(role, lane, peer)[byte], 0);
        }
      }
    }
  }
  meet.barrier(0);
  // Each rank writes one flag at every peer, as kernels do.
  for (int peer = 0; peer < self.world; ++peer) {
    self.page(1, 2, peer)[self.rank] = static_cast<unsigned char>(self.rank + 1);
  }
  meet.barrier(1);
  for (int peer = 0; peer < self.world; ++peer) {
    CHECK_EQ(self.page(1, 2, self.rank)[peer], peer + 1);
    CHECK_EQ(self.page(1, 1, self.rank)[peer], 0);
  }

  std::vector<Window> windows;
  for (int number = 0; number < 3; ++number) {
    windows.push_back(self.peers->create(kBytes));
    std::memset(windows.back().base, 10 * number + self.rank, kBytes);
  }
  meet.barrier(2);
  for (int number = 0; number < 3; ++number) {
    const Window& window = windows[static_cast<size_t>(number)];
    CHECK(self.entry(window.ordinal, self.rank) == window.base);
    for (int peer = 0; peer < self.world; ++peer) {
      const void* const there = self.entry(window.ordinal, peer);
      CHECK(there == self.peers->address(peer, window.ordinal));
      CHECK_EQ(static_cast<const unsigned char*>(there)[kBytes - 1], 10 * number + peer);
    }
  }
  meet.barrier(3);
  self.peers->drop(windows[1]);
  for (int peer = 0; peer < self.world; ++peer) {
    CHECK(self.entry(windows[1].ordinal, peer) == nullptr);
    CHECK(self.entry(windows[0].ordinal, peer) != nullptr);
  }
  CHECK_THROWS_WITH(self.peers->pages(2, 0), InvalidArgument, "no signal page of role 2, lane 0");
  windows.clear();
}

// As NCCL does, which maps a rank's own window a second time beside its peers'.
class SecondMapping : public WindowSource {
 public:
  SecondMapping(WindowSource& source, int rank) : source_(source), rank_(rank) {}
  Window create(size_t bytes) override { return source_.create(bytes); }
  void drop(const Window& window) override { source_.drop(window); }
  const std::byte* address(int rank, uint32_t ordinal) override {
    return rank == rank_ ? second_.data() : source_.address(rank, ordinal);
  }
  void refresh() override { source_.refresh(); }
  size_t mapped_bytes() const override { return source_.mapped_bytes(); }

 private:
  WindowSource& source_;
  int rank_;
  std::array<std::byte, 1> second_{};
};

}  // namespace

TEST(tables_show_every_ranks_windows_and_signal_pages) {
  const FakeSettings settings;
  for (const By by : {By::kVmm, By::kNccl}) {
    for (const int world : {1, 2, 3, 4}) run_peers(by, world, use_tables);
  }
}

TEST(tables_of_ranks_that_are_threads) {
  for (const By by : {By::kVmm, By::kNccl}) run_peer_threads(by, 3, use_tables);
}

TEST(a_ranks_own_entries_are_the_addresses_that_its_kernels_write) {
  run_peers(By::kVmm, 2, [](PeerRank& self, const Rank&) {
    SecondMapping mapping(*self.source, self.rank);
    PeerWindows peers(self.device, mapping, self.agreement, self.rank, self.world, kLayout);
    peers.start("");
    const Window window = peers.create(kBytes);
    const size_t row = window.ordinal % kLayout.ordinals * static_cast<size_t>(self.world);
    CHECK(peers.windows()[row + static_cast<size_t>(self.rank)] == window.base);
    CHECK(peers.address(self.rank, window.ordinal) == window.base);
    CHECK_EQ(static_cast<unsigned char*>(peers.pages(0, 0)[self.rank])[0], 0);
  });
}

TEST(a_row_is_free_again_only_when_its_window_is_gone) {
  for (const By by : {By::kVmm, By::kNccl}) {
    run_peers(by, 2, [](PeerRank& self, const Rank&) {
      self.peers->start("");
      std::vector<Window> windows;  // ordinals from 2 on: 1 is the signal pages'
      for (int number = 0; number < 4; ++number) windows.push_back(self.peers->create(64));
      const size_t live = host().live_bytes();
      CHECK_THROWS_WITH(self.peers->create(64), OutOfMemory, "needs the place that window 2");
      CHECK_EQ(host().live_bytes(), live);
      self.peers->drop(windows[1]);  // 3; the next would be 7
      const Window next = self.peers->create(64);
      CHECK_EQ(next.ordinal % 4, windows[1].ordinal % 4);
      CHECK(self.entry(next.ordinal, self.rank) == next.base);
      CHECK(self.entry(windows[0].ordinal, self.rank) == windows[0].base);
      CHECK_EQ(self.peers->refusal(), "");
    });
  }
}

TEST(why_own_kernels_cannot_run_is_known_to_all_ranks) {
  run_peers(By::kVmm, 3, [](PeerRank& self, const Rank&) {
    const size_t live = host().live_bytes();
    self.peers->start(self.rank == 1 ? "it is Tuesday" : "");
    CHECK_EQ(self.peers->refusal(), "rank 1: it is Tuesday");
    CHECK(self.peers->windows() == nullptr);
    CHECK(self.peers->pages(0, 0) == nullptr);
    CHECK_EQ(host().live_bytes(), live);
    // The windows themselves are there.
    const Window window = self.peers->create(kBytes);
    CHECK(self.peers->address(2, window.ordinal) != nullptr);
    self.peers->drop(window);

    PeerLayout small = kLayout;
    small.max_ranks = 2;
    self.make(small);
    self.peers->start("");
    CHECK(self.peers->refusal().find("own kernels serve 2 ranks, not 3") != std::string::npos);
  });
}

TEST(an_old_nccl_gives_no_addresses) {
  const FakeSettings settings("SYMMOE_FAKE_NCCL_VERSION", "22901");
  run_peers(By::kNccl, 2, [](PeerRank& self, const Rank&) {
    self.peers->start("");
    const std::string refusal = self.peers->refusal();
    CHECK_MSG(refusal.find("rank 0: ncclGetLsaDevicePointer") == 0, refusal);
    CHECK_MSG(refusal.find("rank 1: ncclGetLsaDevicePointer") != std::string::npos, refusal);
    CHECK_EQ(fake_live().windows, size_t{0});
    const Window window = self.peers->create(kBytes);
    self.peers->drop(window);
    CHECK_EQ(fake_misuses(), size_t{0});
  });
}

TEST(what_fails_at_the_start_on_one_rank_is_given_back_on_all) {
  for (const By by : {By::kVmm, By::kNccl}) {
    for (const char* const call :
         {"stream_create", "allocate", "fill", "copy", "allocate_shared", "map_shared",
          "ncclMemAlloc", "ncclCommWindowRegister", "ncclGetLsaDevicePointer"}) {
      const bool of_nccl = std::strncmp(call, "nccl", 4) == 0;
      const bool of_vmm = std::strstr(call, "shared") != nullptr;
      if ((by == By::kVmm && of_nccl) || (by == By::kNccl && of_vmm)) continue;
      // A registration that fails on one rank leaves the others inside it, until NCCL gives up.
      if (std::strcmp(call, "ncclCommWindowRegister") == 0) continue;
      run_peers(by, 3, [&](PeerRank& self, const Rank& meet) {
        const size_t live = host().live_bytes();
        const size_t descriptors = open_descriptors();
        if (self.rank == 1 && of_nccl) {
          order_failure(std::string(call) + ":1=error");
        } else if (self.rank == 1) {
          host().fail(call, 1, kVendorStatus + 1);
        }
        self.peers->start("");
        CHECK_MSG(self.peers->refusal().find("rank 1: ") == 0, call + self.peers->refusal());
        CHECK(self.peers->windows() == nullptr);
        meet.barrier(0);
        CHECK_EQ(host().live_bytes(), live);
        CHECK_EQ(open_descriptors(), descriptors);
        CHECK_EQ(self.peers->mapped_bytes(), size_t{0});
        self.make(kLayout);
        self.peers->start("");  // the next attempt
        CHECK_EQ(self.peers->refusal(), "");
        CHECK_EQ(fake_misuses(), size_t{0});
      });
    }
  }
}

TEST(a_window_out_of_reach_ends_own_kernels_on_all_ranks_and_nothing_else) {
  for (const char* const call : {"ncclGetLsaDevicePointer", "copy"}) {
    for (int failing = 0; failing < 3; ++failing) {
      run_peers(By::kNccl, 3, [&](PeerRank& self, const Rank&) {
        self.peers->start("");
        const Window before = self.peers->create(kBytes);
        const void* const* const table = self.peers->windows();
        if (self.rank == failing) {
          order_failure(std::string(call) + ":1=error");
          if (std::strcmp(call, "copy") == 0) host().fail(call, 1, kVendorStatus + 1);
        }
        const Window window = self.peers->create(kBytes);
        CHECK(window.base != nullptr);
        const std::string words = "rank " + std::to_string(failing) + ": " + call;
        CHECK_MSG(self.peers->refusal().find(words) == 0, self.peers->refusal());
        // Graphs that were made before go on.
        CHECK(self.peers->windows() == table);
        CHECK(self.entry(before.ordinal, self.rank) == before.base);
        CHECK(self.peers->create(kBytes).base != nullptr);
        self.peers->drop(window);
        self.peers->drop(before);
        CHECK(self.entry(before.ordinal, self.rank) == nullptr);
      });
    }
  }
}

TEST(a_kernel_may_read_its_row_while_windows_come_and_go) {
  run_peer_threads(By::kVmm, 2, [](PeerRank& self, const Rank& meet) {
    self.peers->start("");
    const Window kept = self.peers->create(kBytes);
    const Stream stream(self.device);
    std::atomic<bool> stop = false;
    std::atomic<bool> wrong = false;
    const void* const expected = self.entry(kept.ordinal, 1 - self.rank);
    CHECK_EQ(enqueue(stream.handle(),
                     [&, expected] {
                       while (!stop)
                         wrong = wrong || self.entry(kept.ordinal, 1 - self.rank) != expected;
                     }),
             int{kDeviceOk});
    for (int turn = 0; turn < 20; ++turn) {
      const Window other = self.peers->create(64);
      CHECK(self.entry(other.ordinal, self.rank) == other.base);
      if ((other.ordinal + 1) % kLayout.ordinals == kept.ordinal % kLayout.ordinals) {
        CHECK_THROWS(self.peers->create(64), OutOfMemory);
      }
      self.peers->drop(other);
    }
    stop = true;
    stream.synchronize();
    CHECK(!wrong);
    meet.barrier(0);
  });
}

TEST(windows_come_and_go_beside_a_capture) {
  run_peers(By::kVmm, 2, [](PeerRank& self, const Rank&) {
    const Stream stream(self.device);
    CHECK_EQ(host().begin_capture(stream.handle(), kCaptureGlobal), int{kDeviceOk});
    self.peers->start("");
    CHECK_EQ(self.peers->refusal(), "");
    const Window window = self.peers->create(kBytes);
    CHECK(self.entry(window.ordinal, self.rank) == window.base);
    self.peers->drop(window);
    CHECK(self.device->capture_state(stream.handle()).active);
    HostGraph graph = nullptr;
    CHECK_EQ(host().end_capture(stream.handle(), &graph), int{kDeviceOk});
    CHECK_EQ(host().destroy_graph(graph), int{kDeviceOk});
  });
}

TEST(a_peer_that_dies_in_create_is_noticed) {
  for (const By by : {By::kVmm, By::kNccl}) {
    const Board board;
    const SharedId id;
    const SharedMeeting meeting;
    const std::vector<pid_t> pids = start_ranks(3, *meeting, [&](Rank& rank) {
      PeerRank self(by, board, id.get(rank, 62), rank.rank(), 3);
      self.peers->start("");
      if (self.rank == 1) {
        // All of the source's part is done.
        self.agreement.before = [&, left = 3](const std::string&) mutable {
          if (--left > 0) return;
          board.leave(1);
          raise(SIGKILL);
        };
      }
      CHECK_THROWS_WITH(self.peers->create(kBytes), PeerLost, "rank 1");
    });
    CHECK_EQ(finish_process(pids[0]), 0);
    CHECK(WIFSIGNALED(finish_process(pids[1])));
    CHECK_EQ(finish_process(pids[2]), 0);
  }
}

int main(int argc, char** argv) { return run_all(argc, argv); }
