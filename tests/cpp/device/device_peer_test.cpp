// Kernels that wait for peers: thousands of calls in a row, and everything that can go wrong
// between ranks. Nothing hangs, no rank goes on alone, and nothing is written then.

#include <atomic>

#include "peer_ranks.h"

namespace symmoe::device_tests {
namespace {

using emulator::Permission;

constexpr int64_t kHidden = 16;
constexpr int64_t kRowBytes = kHidden * 4;
constexpr uint64_t kShortDeadlineNs = 30'000'000;

// Ranks with `rows` rows of fp32 each. What a rank has in its window is told by its call.
class Group {
 public:
  explicit Group(int world, int rows = 2, int blocks = 2)
      : peers_(world, world * rows * kRowBytes), blocks_(blocks) {
    shares_.sizes.assign(static_cast<size_t>(world), rows);
    for (int rank = 0; rank < world; ++rank) {
      outputs_.push_back(std::make_unique<GuardedOutput>(rows * kRowBytes, 0));
      outputs_.back()->clear();
      write(rank, 0);
    }
  }

  const Peers& peers() const { return peers_; }
  Shares& shares() { return shares_; }
  const Fault& fault(int rank) const { return peers_.fault(rank); }
  uint32_t kind(int rank) const { return peers_.fault(rank).kind; }
  bool untouched(int rank) const { return at(rank).untouched(); }
  void clear_output(int rank) const { at(rank).clear(); }
  void take_fault(int rank) const { peers_.fault(rank).kind = Fault::kNone; }

  PullLaunch launch(int rank, uint64_t deadline_ns = kLongDeadlineNs) const {
    PullLaunch launch = peers_.pull(rank, DType::kFloat32, kHidden, blocks_);
    launch.shares = shares_.for_kernel(rank);
    launch.peers.deadline_ns = deadline_ns;
    launch.output = at(rank).data();
    return launch;
  }

  // Whole numbers, so that any order of addition gives the same.
  static float value(int rank, int64_t row, uint32_t call) {
    return static_cast<float>((call % 1000 + 1) * static_cast<uint32_t>(rank + 1)) +
           static_cast<float>(row);
  }

  // As the producer of the next call does, in the order of the rank's stream.
  void write(int rank, uint32_t call) const {
    float* const rows = reinterpret_cast<float*>(peers_.rows(rank));
    for (int64_t i = 0; i < shares_.rows() * kHidden; ++i) rows[i] = value(rank, i / kHidden, call);
  }

  // How many of the rank's results are not the sums of a call.
  int wrong(int rank, uint32_t call) const {
    const float* const output = reinterpret_cast<const float*>(at(rank).data());
    int count = 0;
    for (int64_t i = 0; i < shares_.count(rank) * kHidden; ++i) {
      float want = 0;
      for (int peer = 0; peer < peers_.world(); ++peer) {
        want += value(peer, shares_.begin(rank) + i / kHidden, call);
      }
      count += output[i] == want ? 0 : 1;
    }
    return count;
  }

  // One call of every rank.
  void call() const {
    peers_.run([&](int rank) { return kernels::launch_pull_reduce(launch(rank), 1, nullptr); });
  }

 private:
  GuardedOutput& at(int rank) const { return *outputs_[static_cast<size_t>(rank)]; }

  Peers peers_;
  int blocks_;
  Shares shares_;
  std::vector<std::unique_ptr<GuardedOutput>> outputs_;
};

void replay(const Group& group, uint32_t calls) {
  std::atomic<int> wrong = 0;
  group.peers().run([&](int rank) {
    const PullLaunch launch = group.launch(rank);  // the same each time, as a graph's
    int status = 0;
    for (uint32_t call = 1; call <= calls && status == 0; ++call) {
      group.write(rank, call);
      status = kernels::launch_pull_reduce(launch, 1, nullptr);
      wrong += group.wrong(rank, call);
    }
    return status;
  });
  CHECK_EQ(wrong.load(), 0);
  for (int rank = 0; rank < group.peers().world(); ++rank) {
    CHECK_EQ(group.kind(rank), uint32_t{Fault::kNone});
  }
}

TEST(peer_thousands_of_replays) {
  for (const int world : {1, 2, 3, 4, 8}) {
    replay(Group(world, 2, 1), (world < 4 ? 3000 : 400) / kShare);
  }
}

TEST(peer_replays_with_blocks_at_once) {
  const BlocksAtOnce at_once(true);
  for (const uint64_t seed : {0, 7}) {
    const Schedule schedule(seed);
    replay(Group(3, 3, 3), 100 / kShare);
  }
}

TEST(peer_epochs_wrap_around) {
  const Group group(2, 2, 1);
  constexpr uint32_t kLast = 0xffffffff;
  for (int rank = 0; rank < 2; ++rank) group.peers().page(rank).epoch[0] = kLast - 5;
  replay(group, 20);
  for (int rank = 0; rank < 2; ++rank) CHECK_EQ(group.peers().page(rank).epoch[0], uint32_t{14});
}

// Blocks count for themselves: calls of different grids may follow one another.
TEST(peer_grids_of_different_sizes) {
  const Group group(2, 4, 4);
  for (uint32_t call = 1; call <= 6; ++call) {
    for (int rank = 0; rank < 2; ++rank) group.write(rank, call);
    group.peers().run([&](int rank) {
      PullLaunch launch = group.launch(rank);
      launch.blocks = call % 2 == 0 ? 4 : 1;
      return kernels::launch_pull_reduce(launch, 1, nullptr);
    });
    for (int rank = 0; rank < 2; ++rank) CHECK_EQ(group.wrong(rank, call), 0);
  }
  CHECK_EQ(group.peers().page(0).epoch[0], uint32_t{6});
  CHECK_EQ(group.peers().page(1).epoch[3], uint32_t{3});
}

TEST(peer_that_never_comes) {
  const Group alone(2);
  CHECK_EQ(kernels::launch_pull_reduce(alone.launch(0, kShortDeadlineNs), 1, nullptr), 0);
  CHECK_EQ(alone.kind(0), uint32_t{Fault::kPeerLate});
  CHECK_EQ(alone.fault(0).subject, int64_t{1});
  CHECK_EQ(alone.fault(0).detail, int64_t{kEntry});
  CHECK_EQ(alone.fault(0).value, int64_t{1});
  CHECK(alone.untouched(0));
}

TEST(peer_that_comes_too_late) {
  const Group group(3);
  group.peers().run([&](int rank) {
    if (rank == 2) return 0;
    return kernels::launch_pull_reduce(group.launch(rank, kShortDeadlineNs), 1, nullptr);
  });
  int late = 0;
  for (const int rank : {0, 1}) {
    CHECK(group.untouched(rank));
    // Whoever gives up first says so to the other, who then need not wait to the end.
    if (group.kind(rank) != Fault::kPeerGaveUp) {
      ++late;
      CHECK_EQ(group.kind(rank), uint32_t{Fault::kPeerLate});
    }
    CHECK(group.fault(rank).subject != rank);
  }
  CHECK(late > 0);

  // When it comes after all, it learns at once that it is too late, and so does everybody again.
  for (const int rank : {0, 1}) group.take_fault(rank);
  group.call();
  for (int rank = 0; rank < 3; ++rank) {
    CHECK_EQ(group.kind(rank), uint32_t{Fault::kPeerGaveUp});
    CHECK(group.untouched(rank));
  }
}

TEST(peer_that_does_not_leave) {
  const Group group(2, 2, 1);
  EntrySignal& entry = group.peers().page(0).entry[0][1];
  entry.ordinal = Peers::ordinal(1);
  entry.offset = static_cast<uint64_t>(Peers::offset(1));
  PullLaunch launch = group.launch(0, kShortDeadlineNs);
  entry.values = 0;  // what ranks without device sizes and masks tell
  entry.stamp = uint64_t{1} << 32 | launch.signature;
  CHECK_EQ(kernels::launch_pull_reduce(launch, 1, nullptr), 0);
  CHECK_EQ(group.kind(0), uint32_t{Fault::kPeerLate});
  CHECK_EQ(group.fault(0).subject, int64_t{1});
  CHECK_EQ(group.fault(0).detail, int64_t{kExit});
  CHECK_EQ(group.peers().page(1).broken, uint32_t{1});
}

// Word of it reaches a rank that waits, long before its deadline.
TEST(peer_that_gives_up) {
  const Group group(2, 2, 1);
  group.peers().page(0).broken = 2;
  CHECK_EQ(kernels::launch_pull_reduce(group.launch(0), 1, nullptr), 0);
  CHECK_EQ(group.kind(0), uint32_t{Fault::kPeerGaveUp});
  CHECK_EQ(group.fault(0).subject, int64_t{1});

  const Group waiting(2, 2, 1);
  std::thread other([&] {
    while (__atomic_load_n(&waiting.peers().page(1).entry[0][0].stamp, __ATOMIC_ACQUIRE) == 0) {
      std::this_thread::yield();
    }
    __atomic_store_n(&waiting.peers().page(0).broken, 2, __ATOMIC_RELEASE);
  });
  CHECK_EQ(kernels::launch_pull_reduce(waiting.launch(0), 1, nullptr), 0);
  other.join();
  CHECK_EQ(waiting.kind(0), uint32_t{Fault::kPeerGaveUp});
  CHECK_EQ(waiting.fault(0).subject, int64_t{1});
  CHECK(waiting.untouched(0));
}

// The ranks go on together with a wrong value, but not once they have parted: that is not lost
// behind a value that nobody has looked at yet, while the first of two such faults stays.
TEST(peer_that_ranks_part_takes_the_place_of_a_wrong_value) {
  const Group group(2, 4);
  group.peers().fault(0).kind = Fault::kIndexOutOfRange;
  group.peers().fault(1).kind = Fault::kPeerLate;
  group.peers().run([&](int rank) {
    PullLaunch launch = group.launch(rank);
    launch.signature = rank == 1 ? 77 : 55;
    return kernels::launch_pull_reduce(launch, 1, nullptr);
  });
  CHECK_EQ(group.kind(0), uint32_t{Fault::kCallsDiffer});
  CHECK_EQ(group.fault(0).value, int64_t{77});
  CHECK_EQ(group.kind(1), uint32_t{Fault::kPeerLate});
}

// All ranks find out, also those that agree with some; blocks that no other rank has do not wait.
TEST(peer_calls_differ) {
  for (const bool at_once : {false, true}) {
    const BlocksAtOnce blocks(at_once);
    const Group group(3, 4);
    group.peers().run([&](int rank) {
      PullLaunch launch = group.launch(rank);
      launch.signature = rank == 1 ? 77 : 55;
      launch.blocks = rank == 1 ? 4 : 2;
      return kernels::launch_pull_reduce(launch, 1, nullptr);
    });
    for (int rank = 0; rank < 3; ++rank) {
      CHECK_EQ(group.kind(rank), uint32_t{Fault::kCallsDiffer});
      CHECK_EQ(group.fault(rank).detail, int64_t{rank == 1 ? 77 : 55});
      CHECK_EQ(group.fault(rank).value, int64_t{rank == 1 ? 55 : 77});
      CHECK_EQ(group.fault(rank).subject == 1, rank != 1);
      CHECK(group.untouched(rank));
    }
  }
}

TEST(peer_sizes_differ) {
  Group group(3);
  group.shares().layout = Layout::kPackedOnDevice;
  const std::vector<int32_t> others = {2, 1, 2};
  group.peers().run([&](int rank) {
    PullLaunch launch = group.launch(rank);
    if (rank == 2) launch.shares.sizes = others.data();
    return kernels::launch_pull_reduce(launch, 1, nullptr);
  });
  for (int rank = 0; rank < 3; ++rank) {
    CHECK_EQ(group.kind(rank), uint32_t{Fault::kValuesDiffer});
    CHECK(group.fault(rank).detail != group.fault(rank).value);
    CHECK(group.untouched(rank));
  }
}

TEST(peer_masks_differ) {
  const Group group(2);
  const std::vector<uint64_t> masks(4, 3);
  const MaskHash hash[] = {{5, 0, 0, 0}, {6, 0, 0, 0}};
  group.peers().run([&](int rank) {
    PullLaunch launch = group.launch(rank);
    launch.mask = masks.data();
    launch.mask_hash = &hash[rank];
    return kernels::launch_pull_reduce(launch, 1, nullptr);
  });
  for (int rank = 0; rank < 2; ++rank) {
    CHECK_EQ(group.kind(rank), uint32_t{Fault::kValuesDiffer});
    CHECK(group.untouched(rank));
  }
}

// Wrong sizes are the caller's mistake: nothing is touched, and the next call is well again.
TEST(peer_wrong_sizes) {
  struct Wrong {
    std::vector<int32_t> sizes;
    Layout layout;
    int64_t subject, limit, value;
  };
  const Wrong all_wrong[] = {
      {{2, -1, 2}, Layout::kPackedOnDevice, 1, 4, -1},
      {{2, 2, 3}, Layout::kPackedOnDevice, 2, 2, 3},
      {{0, INT32_MAX, 2}, Layout::kPackedOnDevice, -1, 0, 0},
      {{2, 3, 1}, Layout::kPaddedOnDevice, 1, 2, 3},
      {{INT32_MIN, 2, 2}, Layout::kPaddedOnDevice, 0, 2, INT32_MIN},
  };
  for (const Wrong& wrong : all_wrong) {
    Group group(3);
    group.shares().padded_to = wrong.layout == Layout::kPaddedOnDevice ? 2 : 0;
    group.shares().layout = wrong.layout;
    std::vector<int32_t> sizes = wrong.sizes;
    Declared declared;
    group.peers().declare(declared);
    declared.add(sizes.data(), 12, Permission::kRead);  // and no row at all
    const auto call = [&] {
      group.peers().run([&](int rank) {
        PullLaunch launch = group.launch(rank);
        launch.shares.sizes = sizes.data();
        launch.shares.output_rows = 9;
        return kernels::launch_pull_reduce(launch, 1, nullptr);
      });
    };
    call();
    for (int rank = 0; rank < 3; ++rank) {
      CHECK_EQ(group.kind(rank), uint32_t{Fault::kSizesWrong});
      CHECK(group.untouched(rank));
      if (wrong.subject < 0) continue;  // one of two
      CHECK_EQ(group.fault(rank).subject, wrong.subject);
      CHECK_EQ(group.fault(rank).detail, wrong.limit);
      CHECK_EQ(group.fault(rank).value, wrong.value);
    }
    emulator::forget_memory();
    for (int rank = 0; rank < 3; ++rank) group.take_fault(rank);
    sizes = {2, 2, 2};
    call();
    for (int rank = 0; rank < 3; ++rank) {
      CHECK_EQ(group.kind(rank), uint32_t{Fault::kNone});
      CHECK_EQ(group.wrong(rank, 0), 0);
    }
  }
}

// Of one rank's output only that rank knows; the others get their rows.
TEST(peer_output_too_small) {
  Group group(2);
  group.shares().layout = Layout::kPackedOnDevice;
  group.peers().run([&](int rank) {
    PullLaunch launch = group.launch(rank);
    if (rank == 1) launch.shares.output_rows = 1;
    return kernels::launch_pull_reduce(launch, 1, nullptr);
  });
  CHECK_EQ(group.kind(0), uint32_t{Fault::kNone});
  CHECK_EQ(group.wrong(0, 0), 0);
  CHECK_EQ(group.kind(1), uint32_t{Fault::kSizesWrong});
  CHECK_EQ(group.fault(1).subject, int64_t{1});
  CHECK_EQ(group.fault(1).detail, int64_t{1});
  CHECK(group.untouched(1));
}

TEST(peer_without_a_window) {
  const Group group(3, 2, 1);
  group.peers().forget_window(0, 1);
  group.call();
  CHECK_EQ(group.kind(0), uint32_t{Fault::kNoWindow});
  CHECK_EQ(group.fault(0).subject, int64_t{1});
  CHECK_EQ(group.fault(0).detail, int64_t{Peers::ordinal(1)});
  CHECK_EQ(group.fault(0).value, Peers::offset(1));
  CHECK(group.untouched(0));
  for (const int rank : {1, 2}) {
    CHECK_EQ(group.kind(rank), uint32_t{Fault::kPeerGaveUp});
    CHECK_EQ(group.fault(rank).subject, int64_t{0});
  }
}

TEST(peer_faults_need_no_record) {
  const Group group(2);
  group.peers().run([&](int rank) {
    PullLaunch launch = group.launch(rank);
    launch.peers.fault = nullptr;
    launch.signature = static_cast<uint32_t>(rank);
    return kernels::launch_pull_reduce(launch, 1, nullptr);
  });
  for (int rank = 0; rank < 2; ++rank) CHECK(group.untouched(rank));
}

}  // namespace
}  // namespace symmoe::device_tests

DEVICE_TEST_MAIN()
