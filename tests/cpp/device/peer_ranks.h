#pragma once

// Ranks as threads of one process: each has windows, a page of signals and tables of its own, and
// launches kernels that wait for those of the others.

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device_cases.h"
#include "kernels/device/emulator/sanitizers.h"
#include "kernels/device/peer_grid.h"
#include "kernels/device/signal_page.h"

namespace symmoe::device_tests {

using kernels::CombineLaunch;
using kernels::EntrySignal;
using kernels::kEntry;
using kernels::kExit;
using kernels::kMaxBlocks;
using kernels::kMaxOrdinals;
using kernels::kMaxPeers;
using kernels::MaskHash;
using kernels::PeerGroup;
using kernels::PullLaunch;
using kernels::RouteMaskLaunch;
using kernels::RowShares;
using kernels::SignalPage;

constexpr uint64_t kLongDeadlineNs = 60'000'000'000;
constexpr char kPoison = '\xff';  // NaN in every type
constexpr uint32_t kSignature = 0x5eed;

// The thread sanitizer sees a missing order in any call, and takes its time for each.
#if defined(SYMMOE_TSAN)
constexpr uint32_t kShare = 20;
#else
constexpr uint32_t kShare = 1;
#endif

// Blocks at the same time, or one after the other in the rank's own thread.
class BlocksAtOnce {
 public:
  explicit BlocksAtOnce(bool at_once) { emulator::options().co_resident = at_once; }
  ~BlocksAtOnce() { emulator::options().co_resident = false; }
  BlocksAtOnce(const BlocksAtOnce&) = delete;
  BlocksAtOnce& operator=(const BlocksAtOnce&) = delete;
};

class Peers {
 public:
  // Rank r's rows are in its window `ordinal(r)` at `offset(r)`: alike only by chance.
  Peers(int world, int64_t window_bytes) : bytes_(window_bytes) {
    for (int rank = 0; rank < world; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(window_bytes + offset(rank)));
      clear(rank);
    }
    for (const auto& rank : ranks_) {
      rank->table.resize(static_cast<size_t>(kMaxOrdinals * world));
      for (int peer = 0; peer < world; ++peer) {
        rank->signals.push_back(ranks_[static_cast<size_t>(peer)]->pages.get());
        rank->table[row_of(peer)] = ranks_[static_cast<size_t>(peer)]->window.data();
      }
    }
  }

  int world() const { return static_cast<int>(ranks_.size()); }
  static uint32_t ordinal(int rank) { return rank % 3 == 1 ? kMaxOrdinals + 7 : 3; }
  static int64_t offset(int rank) { return rank % 2 == 0 ? 0 : 48; }
  char* rows(int rank) const { return at(rank).window.data() + offset(rank); }
  SignalPage& page(int rank) const { return at(rank).pages->page; }
  Fault& fault(int rank) const { return at(rank).fault; }
  void clear(int rank) const { std::memset(rows(rank), kPoison, static_cast<size_t>(bytes_)); }
  // As if `rank` had dropped the window of `peer`, or had not yet learnt of it.
  void forget_window(int rank, int peer) const { at(rank).table[row_of(peer)] = nullptr; }

  PeerGroup group(int rank, uint64_t deadline_ns = kLongDeadlineNs) const {
    PeerGroup group;
    group.signals = at(rank).signals.data();
    group.page_offset = kPageOffset;
    group.windows = at(rank).table.data();
    group.fault = &at(rank).fault;
    group.deadline_ns = deadline_ns;
    group.rank = rank;
    group.world = world();
    return group;
  }

  PullLaunch pull(int rank, DType type, int64_t hidden, int blocks) const {
    PullLaunch launch;
    launch.peers = group(rank);
    launch.hidden = hidden;
    launch.offset = static_cast<uint64_t>(offset(rank));
    launch.ordinal = ordinal(rank);
    launch.signature = kSignature;
    launch.blocks = blocks;
    launch.type = type;
    return launch;
  }

  // What ranks use beside their rows.
  void declare(Declared& declared) const {
    using emulator::Permission;
    for (const auto& rank : ranks_) {
      const auto count = static_cast<int64_t>(sizeof(void*));
      declared.add(&rank->pages->page, sizeof(SignalPage), Permission::kWrite);
      declared.add(rank->signals.data(), world() * count, Permission::kRead);
      declared.add(rank->table.data(), kMaxOrdinals * world() * count, Permission::kRead);
      declared.add(&rank->fault, sizeof(Fault), Permission::kWrite);
    }
  }

  // On a thread per rank, as the ranks' processes would.
  // Every launch must give 0.
  void run(const std::function<int(int rank)>& launch) const {
    std::vector<int> status(ranks_.size(), -1);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world(); ++rank) {
      threads.emplace_back([&, rank] { status[static_cast<size_t>(rank)] = launch(rank); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const int of_rank : status) CHECK_EQ(of_rank, 0);
  }

 private:
  struct Pages {
    char other_lanes[256];
    SignalPage page;
  };
  static constexpr uint64_t kPageOffset = offsetof(Pages, page);

  struct Rank {
    explicit Rank(int64_t window_bytes) : window(window_bytes), pages(new Pages{}) {}
    Bytes window;
    std::unique_ptr<Pages> pages;
    std::vector<void*> signals;
    std::vector<const void*> table;
    Fault fault{};
  };

  Rank& at(int rank) const { return *ranks_[static_cast<size_t>(rank)]; }
  size_t row_of(int peer) const {
    return static_cast<size_t>(ordinal(peer) % kMaxOrdinals) * static_cast<size_t>(world()) +
           static_cast<size_t>(peer);
  }

  int64_t bytes_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

// How the rows of all ranks are said to the kernels.
enum class Layout { kHost, kPackedOnDevice, kPaddedOnDevice };

// Rows of each rank, and where they begin.
struct Shares {
  Layout layout = Layout::kHost;
  std::vector<int32_t> sizes;
  int64_t padded_to = 0;
  int64_t slack = 0;  // rows of the window behind all shares

  int64_t begin(int rank) const {
    if (padded_to > 0) return rank * padded_to;
    int64_t before = 0;
    for (int r = 0; r < rank; ++r) before += sizes[static_cast<size_t>(r)];
    return before;
  }
  int64_t count(int rank) const { return sizes[static_cast<size_t>(rank)]; }
  int64_t rows() const {
    const int world = static_cast<int>(sizes.size());
    return slack + (padded_to > 0 ? world * padded_to : begin(world - 1) + count(world - 1));
  }
  // Which rows are some rank's.
  std::vector<bool> owned() const {
    std::vector<bool> owned(static_cast<size_t>(rows()));
    for (int rank = 0; rank < static_cast<int>(sizes.size()); ++rank) {
      std::fill_n(owned.begin() + begin(rank), count(rank), true);
    }
    return owned;
  }
  int64_t most() const { return *std::max_element(sizes.begin(), sizes.end()); }

  RowShares for_kernel(int rank) const {
    RowShares shares;
    if (layout == Layout::kHost) {
      for (int r = 0; r < static_cast<int>(sizes.size()); ++r) {
        shares.begins[r] = begin(r);
        shares.counts[r] = count(r);
      }
      return shares;
    }
    shares.sizes = sizes.data();
    shares.padded_to = layout == Layout::kPaddedOnDevice ? padded_to : 0;
    shares.rows = rows();
    shares.output_rows = count(rank);
    return shares;
  }
};

inline Shares random_shares(int world, int variant, std::mt19937& random) {
  Shares shares;
  for (int rank = 0; rank < world; ++rank) {
    shares.sizes.push_back(variant % 4 == 0 ? 3 : static_cast<int32_t>(random() % 5));
  }
  if (variant % 2 == 1) shares.sizes[random() % static_cast<uint32_t>(world)] = 0;
  shares.layout = static_cast<Layout>(variant % 3);
  const bool host_pads = shares.layout == Layout::kHost && variant % 4 >= 2;
  if (shares.layout == Layout::kPaddedOnDevice || host_pads) shares.padded_to = 5;
  shares.slack = variant % 2;
  return shares;
}

// A mask per row of a window. Some rows are nobody's.
inline std::vector<uint64_t> random_masks(int64_t rows, int world, std::mt19937& random) {
  std::vector<uint64_t> masks(static_cast<size_t>(rows));
  for (uint64_t& mask : masks) {
    for (int rank = 0; rank < world; ++rank) mask |= uint64_t{random() % 3 == 0} << rank;
  }
  return masks;
}

// The CPU kernel's sum of one row over the ranks in the mask; +0 if there are none.
inline void wanted_row(const Peers& peers, uint64_t mask, DType type, int64_t hidden, int64_t row,
                       char* to) {
  const int64_t bytes = hidden * DeviceTopk::bytes_of(type);
  std::vector<const void*> sources;
  for (int rank = 0; rank < peers.world(); ++rank) {
    if ((mask >> rank & 1) != 0) sources.push_back(peers.rows(rank) + row * bytes);
  }
  std::memset(to, 0, static_cast<size_t>(bytes));
  if (sources.empty()) return;
  kernels::rank_reduce({sources.data(), static_cast<int>(sources.size()), to, hidden, type}, 1);
}

inline uint64_t all_ranks(int world) { return ~uint64_t{0} >> (kMaxPeers - world); }

}  // namespace symmoe::device_tests
