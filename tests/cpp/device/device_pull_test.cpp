// Rows pulled from all ranks' windows: the CPU kernel's bits, for every layout of rows and every
// mask, and nothing read or written that is not one's own.

#include "pulled_rows.h"

namespace symmoe::device_tests {
namespace {

TEST(pull_bits_of_every_world_type_and_layout) {
  std::mt19937 random(11);
  uint32_t sample = 0;
  for (const int world : {1, 2, 3, 4, 8}) {
    for (const DType type : reference::kTypes) {
      // One chunk of columns, also of an odd length, and several.
      for (const int64_t hidden : {8, 13, 1000, 4104}) {
        for (int variant = 0; variant < 6; ++variant, ++sample) {
          PullCase pull;
          pull.world = world;
          pull.type = type;
          pull.hidden = hidden;
          pull.shares = random_shares(world, sample, random);
          pull.masked = variant % 2 == 1;
          pull.blocks = 1 + sample % 3;
          pull.output_offset = variant == 4 ? 1 : 0;
          if (hidden > 1000 && (variant > 2 || world == 8)) continue;
          if (sample % kShare != 0) continue;
          const Schedule schedule(sample % 2 == 0 ? 0 : random());
          const BlocksAtOnce at_once(sample % 4 == 3);
          PulledRows(pull, random).check();
        }
      }
    }
  }
}

TEST(pull_in_the_largest_group) {
  constexpr int kWorld = kShare == 1 ? kMaxPeers : 9;
  std::mt19937 random(12);
  for (const bool masked : {false, true}) {
    PullCase pull;
    pull.world = kWorld;
    pull.hidden = 24;
    pull.shares = random_shares(kWorld, 1, random);
    pull.masked = masked;
    pull.blocks = 1;
    PulledRows(pull, random).check();
  }
}

TEST(pull_over_the_own_share) {
  std::mt19937 random(13);
  PullCase pull;
  pull.world = 3;
  pull.shares = {Layout::kHost, {4, 1, 3}};
  PulledRows rows(pull, random);
  const Peers& peers = rows.peers();
  const int64_t bytes = pull.hidden * DeviceTopk::bytes_of(pull.type);
  std::vector<std::vector<char>> want;
  for (int rank = 0; rank < pull.world; ++rank) {
    want.emplace_back(static_cast<size_t>(pull.shares.count(rank) * bytes));
    for (int64_t i = 0; i < pull.shares.count(rank); ++i) {
      wanted_row(peers, all_ranks(3), pull.type, pull.hidden, pull.shares.begin(rank) + i,
                 want.back().data() + i * bytes);
    }
  }
  peers.run([&](int rank) {
    PullLaunch launch = rows.launch(rank);
    launch.output = peers.rows(rank) + pull.shares.begin(rank) * bytes;
    return kernels::launch_pull_reduce(launch, 1, nullptr);
  });
  for (int rank = 0; rank < pull.world; ++rank) {
    const char* const got = peers.rows(rank) + pull.shares.begin(rank) * bytes;
    CHECK_EQ(reference::first_difference(pull.type, got, want[static_cast<size_t>(rank)]), -1);
  }
}

// The rows' bytes once, and little else.
TEST(pull_reads_masked_rows_only) {
  std::mt19937 random(14);
  PullCase pull;
  pull.world = 4;
  pull.hidden = 2048;
  pull.shares = {Layout::kHost, {6, 6, 6, 6}};
  uint64_t loaded[2];
  for (const bool masked : {false, true}) {
    pull.masked = masked;
    PulledRows rows(pull, random);
    emulator::reset_counters();
    rows.check();
    loaded[masked ? 1 : 0] = emulator::counters().loaded;
    CHECK_EQ(emulator::counters().stored > 24 * 2048 * 2, true);
  }
  const uint64_t dense_rows = 4 * 24 * 2048 * 2;
  CHECK(loaded[0] > dense_rows);
  CHECK(loaded[0] < dense_rows + dense_rows / 8);
  CHECK(loaded[1] < dense_rows / 2 + dense_rows / 8);
}

}  // namespace
}  // namespace symmoe::device_tests

DEVICE_TEST_MAIN()
