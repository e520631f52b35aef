#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/device/grid.h"
#include "kernels/device/signal_page.h"

// How kernels that wait for peers are cut into blocks: from facts that are equal on all ranks. A
// share's rows are cut into chunks of columns, one unit of work each; block i has units i,
// i + blocks, and so on, of every share, whichever kernel does it.
namespace symmoe::kernels {

// Elements of a row that one thread of a block has, of every type.
constexpr int64_t kPeerColumns = 8;
constexpr int64_t kPeerWarp = 32;

// Into how many chunks a row is cut: no more than needed, and equally large ones.
inline int64_t peer_chunks(int64_t hidden) {
  return std::max<int64_t>(divided_up(hidden, kMaxBlockThreads * kPeerColumns), 1);
}

// Threads of a block: as many as a chunk has work for, and one per peer at least.
inline int64_t peer_threads(int64_t hidden) {
  const int64_t groups = divided_up(divided_up(hidden, kPeerColumns), peer_chunks(hidden));
  return std::max<int64_t>(divided_up(groups, kPeerWarp) * kPeerWarp, kMaxPeers);
}

// Of a multiprocessor: registers are shared out so that so many fit. docs/device_kernels.md says
// what follows for kMaxBlocks.
constexpr int kPeerBlocksAtOnce = 2;

// Blocks for shares of up to `most_rows` rows, at most `limit`, which ranks have agreed on.
inline int peer_blocks(int64_t most_rows, int64_t hidden, int limit = kMaxBlocks) {
  const int64_t most = std::clamp(limit, 1, kMaxBlocks);
  return static_cast<int>(std::clamp<int64_t>(most_rows * peer_chunks(hidden), 1, most));
}

}  // namespace symmoe::kernels
