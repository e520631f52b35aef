// Rows pulled from all ranks' windows: the CPU kernel's bits, for every layout of rows and every
// mask, and nothing read or written that is not one's own.

#include "peer_ranks.h"

namespace symmoe::device_tests {
namespace {

using emulator::Permission;

struct PullCase {
  int world = 2;
  DType type = DType::kBFloat16;
  int64_t hidden = 64;
  Shares shares;
  bool masked = false;
  int blocks = 2;
  int64_t output_offset = 0;  // elements
};

class PulledRows {
 public:
  PulledRows(const PullCase& given, std::mt19937& random)
      : case_(given),
        peers_(given.world, given.shares.rows() * row_bytes()),
        masks_(given.shares.rows(), all_ranks(given.world)) {
    if (case_.masked) masks_ = random_masks(case_.shares.rows(), case_.world, random);
    hash_.value = random();
    for (int rank = 0; rank < case_.world; ++rank) {
      fill_window(rank, random);
      outputs_.push_back(
          std::make_unique<GuardedOutput>(case_.shares.count(rank) * row_bytes(),
                                          case_.output_offset * DeviceTopk::bytes_of(case_.type)));
      outputs_.back()->clear();
    }
  }

  const Peers& peers() const { return peers_; }
  GuardedOutput& output(int rank) { return *outputs_[static_cast<size_t>(rank)]; }

  PullLaunch launch(int rank) {
    PullLaunch launch = peers_.pull(rank, case_.type, case_.hidden, case_.blocks);
    launch.shares = case_.shares.for_kernel(rank);
    launch.output = output(rank).data();
    if (case_.masked) launch.mask = masks_.data();
    if (case_.masked) launch.mask_hash = &hash_;
    return launch;
  }

  std::string describe(int rank) const {
    std::string sizes;
    for (const int32_t size : case_.shares.sizes) sizes += " " + std::to_string(size);
    return std::string(name_of(case_.type)) + ", rank " + std::to_string(rank) + " of " +
           std::to_string(case_.world) + ", sizes" + sizes + ", hidden " +
           std::to_string(case_.hidden) + (case_.masked ? ", masked" : "") + ", blocks " +
           std::to_string(case_.blocks) + ", seed " + std::to_string(emulator::options().seed);
  }

  void check() {
    {
      Declared declared;
      declare(declared);
      peers_.run([&](int rank) { return kernels::launch_pull_reduce(launch(rank), 1, nullptr); });
    }
    for (int rank = 0; rank < case_.world; ++rank) {
      CHECK_MSG(peers_.fault(rank).kind == Fault::kNone, describe(rank));
      const int64_t at = reference::first_difference(case_.type, output(rank).data(), want(rank));
      CHECK_MSG(at == -1, describe(rank) + " at " + std::to_string(at));
      CHECK_MSG(output(rank).guards_untouched(), describe(rank));
    }
  }

 private:
  int64_t row_bytes() const { return case_.hidden * DeviceTopk::bytes_of(case_.type); }

  bool written(int rank, int64_t row) const {
    return (masks_[static_cast<size_t>(row)] >> rank & 1) != 0;
  }

  // For each row of a share of which `rank` holds something.
  void for_each_row(int rank, const std::function<void(char* row)>& body) const {
    for (int owner = 0; owner < case_.world; ++owner) {
      for (int64_t i = 0; i < case_.shares.count(owner); ++i) {
        const int64_t row = case_.shares.begin(owner) + i;
        if (written(rank, row)) body(peers_.rows(rank) + row * row_bytes());
      }
    }
  }

  // Rows that nobody is to read stay NaN.
  void fill_window(int rank, std::mt19937& random) const {
    const Bytes row(row_bytes());
    for_each_row(rank, [&](char* to) {
      reference::fill(row, case_.type, random);
      std::memcpy(to, row.data(), static_cast<size_t>(row_bytes()));
    });
  }

  void declare(Declared& declared) {
    peers_.declare(declared);
    for (int rank = 0; rank < case_.world; ++rank) {
      for_each_row(rank,
                   [&](char* row) { declared.add(row, row_bytes(), Permission::kReadPeersWrite); });
      declared.add(output(rank).data(), case_.shares.count(rank) * row_bytes(), Permission::kWrite);
    }
    declared.add(masks_.data(), case_.shares.rows() * 8, Permission::kRead);
    declared.add(&hash_, sizeof hash_, Permission::kRead);
    declared.add(case_.shares.sizes.data(), case_.world * 4, Permission::kRead);
  }

  std::vector<char> want(int rank) const {
    std::vector<char> rows(static_cast<size_t>(case_.shares.count(rank) * row_bytes()));
    for (int64_t i = 0; i < case_.shares.count(rank); ++i) {
      const int64_t row = case_.shares.begin(rank) + i;
      wanted_row(peers_, masks_[static_cast<size_t>(row)], case_.type, case_.hidden, row,
                 rows.data() + i * row_bytes());
    }
    return rows;
  }

  PullCase case_;
  Peers peers_;
  std::vector<uint64_t> masks_;
  MaskHash hash_{};
  std::vector<std::unique_ptr<GuardedOutput>> outputs_;
};

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
