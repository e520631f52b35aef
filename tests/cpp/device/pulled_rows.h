#pragma once

// Ranks with rows in their windows, of which each wants its own share: what they launch, and what
// comes of it.

#include "peer_ranks.h"

namespace symmoe::device_tests {

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
  const PullCase& shape() const { return case_; }
  const std::vector<uint64_t>& masks() const { return masks_; }
  GuardedOutput& output(int rank) { return *outputs_[static_cast<size_t>(rank)]; }

  PullLaunch launch(int rank) {
    PullLaunch launch = peers_.pull(rank, case_.type, case_.hidden, case_.blocks);
    launch.shares = case_.shares.for_kernel(rank);
    launch.output = output(rank).data();
    if (case_.masked) launch.mask = masks_.data();
    if (case_.masked) launch.mask_hash = &hash_;
    return launch;
  }

  int64_t row_bytes() const { return case_.hidden * DeviceTopk::bytes_of(case_.type); }

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
    for (int rank = 0; rank < case_.world; ++rank) check_rank(rank);
  }

  void check_rank(int rank) {
    CHECK_MSG(peers_.fault(rank).kind == Fault::kNone, describe(rank));
    const int64_t at = reference::first_difference(case_.type, output(rank).data(), want(rank));
    CHECK_MSG(at == -1, describe(rank) + " at " + std::to_string(at));
    CHECK_MSG(output(rank).guards_untouched(), describe(rank));
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

 private:
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

}  // namespace symmoe::device_tests
