#pragma once

#include "kernels/device/dev.h"
#include "kernels/device/launch.h"
#include "kernels/device/mixed.h"
#include "kernels/device/report.h"
#include "kernels/device/row_shares.h"

// One block's part in a call of all ranks: whose rows are where, and the two times that it meets
// the same block of every rank. See signal_page.h. Thread r deals with rank r; a block has at least
// kMaxPeers threads. All functions are for all threads of the block.
namespace symmoe::kernels::SYMMOE_PLATFORM {

struct PeerCall {
  const char* rows[kMaxPeers];  // of each rank's window, as it has told at the entry
  ShareTable shares;
  int64_t pulled;    // rows of the own share: none if there is no room for them
  SignalPage* page;  // the own one
  uint32_t epoch;
  uint32_t values;  // hash of what only the device knows
  uint32_t broken;  // as the page said at the beginning
};

SYMMOE_DEVICE SignalPage* page_of(const PeerGroup& peers, int rank) {
  auto* const memory = static_cast<char*>(dev::load<void*>(peers.signals + rank));
  return reinterpret_cast<SignalPage*>(memory + peers.page_offset);
}

// Whether the output has room for the own share. That concerns nobody else: the peers get the rows
// that this rank has for them.
SYMMOE_DEVICE bool has_room(const PullLaunch& problem, int64_t size) {
  const RowShares& shares = problem.shares;
  if (shares.sizes == nullptr || size <= shares.output_rows) return true;
  report(problem.peers.fault, Fault::kSizesWrong, problem.peers.rank, shares.output_rows, size);
  return false;
}

// Hash of the values that ranks were given on their devices, and must have in common.
SYMMOE_DEVICE uint32_t hash_of_values(const PullLaunch& problem) {
  uint64_t hash = 0;
  if (problem.shares.sizes != nullptr) {
    for (int rank = 0; rank < problem.peers.world; ++rank) {
      hash += mixed_at(rank, static_cast<uint64_t>(size_at(problem.shares, rank)));
    }
  }
  if (problem.mask != nullptr) hash += dev::load<uint64_t>(&problem.mask_hash->value);
  return static_cast<uint32_t>(mixed(hash));
}

// False if the ranks have parted before: then nothing is to be done.
SYMMOE_DEVICE bool begin_call(const PullLaunch& problem, PeerCall& call) {
  const int rank = static_cast<int>(dev::thread());
  if (rank == 0) {
    call.page = page_of(problem.peers, problem.peers.rank);
    call.epoch = dev::load<uint32_t>(&call.page->epoch[dev::block()]) + 1;
    call.values = hash_of_values(problem);
    call.broken = dev::peek(&call.page->broken);
    if (call.broken != 0) {
      report(problem.peers.fault, Fault::kPeerGaveUp, int64_t{call.broken} - 1, kEntry, call.epoch);
    }
  }
  // With one wrong size nobody has rows: the ranks meet, and no row is touched.
  read_shares(problem.shares, problem.peers.world, problem.peers.fault, call.shares);
  if (rank == problem.peers.rank) {  // for behind the next barrier
    const int64_t own = call.shares.count[rank];
    call.pulled = has_room(problem, own) ? own : 0;
  }
  return call.broken == 0;
}

// Ends this and all later calls of this rank or, where they cannot know by themselves, of all.
SYMMOE_DEVICE void give_up(const PeerGroup& peers, bool for_all) {
  for (int rank = 0; rank < peers.world; ++rank) {
    if (!for_all && rank != peers.rank) continue;
    dev::publish(&page_of(peers, rank)->broken, static_cast<uint32_t>(peers.rank) + 1);
  }
}

// Waits for a peer's word; false if it does not come.
SYMMOE_DEVICE bool await(const PeerGroup& peers, const PeerCall& call, Phase phase, int peer) {
  const EntrySignal& entry = call.page->entry[dev::block()][peer];
  const uint32_t& exit = call.page->exit[dev::block()][peer];
  const uint64_t begin = dev::clock_ns();
  while ((phase == kEntry ? dev::peek(&entry.stamp) >> 32 : dev::peek(&exit)) != call.epoch) {
    if (const uint32_t broken = dev::peek(&call.page->broken); broken != 0) {
      report(peers.fault, Fault::kPeerGaveUp, int64_t{broken} - 1, phase, call.epoch);
      return false;
    }
    if (dev::clock_ns() - begin > peers.deadline_ns) {
      report(peers.fault, Fault::kPeerLate, peer, phase, call.epoch);
      give_up(peers, true);
      return false;
    }
    dev::pause();
  }
  return true;
}

// Tells a peer where this rank's rows are.
SYMMOE_DEVICE void signal_entry(const PullLaunch& problem, const PeerCall& call, int peer) {
  EntrySignal& there = page_of(problem.peers, peer)->entry[dev::block()][problem.peers.rank];
  dev::store(&there.values, call.values);
  dev::store(&there.ordinal, problem.ordinal);
  dev::store(&there.offset, problem.offset);
  dev::publish(&there.stamp, uint64_t{call.epoch} << 32 | problem.signature);
}

// Takes what a peer has told; false if the call cannot go on.
SYMMOE_DEVICE bool accept_entry(const PullLaunch& problem, PeerCall& call, int peer) {
  const PeerGroup& peers = problem.peers;
  const EntrySignal& signal = call.page->entry[dev::block()][peer];
  const auto signature = static_cast<uint32_t>(dev::load<uint64_t>(&signal.stamp));
  const auto values = dev::load<uint32_t>(&signal.values);
  // Each rank compares all others with itself: if any two differ, all find out.
  if (signature != problem.signature || values != call.values) {
    const bool calls = signature != problem.signature;
    report(peers.fault, calls ? Fault::kCallsDiffer : Fault::kValuesDiffer, peer,
           calls ? problem.signature : call.values, calls ? signature : values);
    give_up(peers, false);
    return false;
  }
  const auto ordinal = dev::load<uint32_t>(&signal.ordinal);
  const auto offset = dev::load<uint64_t>(&signal.offset);
  const auto* const window = static_cast<const char*>(
      dev::load<const void*>(peers.windows + ordinal % kMaxOrdinals * peers.world + peer));
  if (window == nullptr) {
    report(peers.fault, Fault::kNoWindow, peer, ordinal, static_cast<int64_t>(offset));
    give_up(peers, true);
    return false;
  }
  call.rows[peer] = window + offset;
  return true;
}

// Afterwards all ranks' rows are in their windows, and call.rows says where. If false, then none
// may be touched.
SYMMOE_DEVICE bool meet_at_entry(const PullLaunch& problem, PeerCall& call) {
  dev::sync_block();  // what this block has written is there
  const int peer = static_cast<int>(dev::thread());
  bool met = true;
  if (peer < problem.peers.world) {
    signal_entry(problem, call, peer);
    met = await(problem.peers, call, kEntry, peer) && accept_entry(problem, call, peer);
  }
  return dev::sync_block_and(met);
}

// Afterwards all ranks have read, and the kernel's end lets the next one write.
SYMMOE_DEVICE void meet_at_exit(const PullLaunch& problem, const PeerCall& call) {
  dev::sync_block();  // this block has read
  const int peer = static_cast<int>(dev::thread());
  if (peer < problem.peers.world) {
    const PeerGroup& peers = problem.peers;
    dev::publish(&page_of(peers, peer)->exit[dev::block()][peers.rank], call.epoch);
    await(peers, call, kExit, peer);
  }
  if (peer == 0) dev::store(&call.page->epoch[dev::block()], call.epoch);
}

}  // namespace symmoe::kernels::SYMMOE_PLATFORM
