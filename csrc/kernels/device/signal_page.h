#pragma once

#include <cstddef>
#include <cstdint>

// The memory in which ranks tell one another how far their kernels are: one page per rank, role and
// lane, in a window. Peers write into a rank's page; the rank itself only reads what they wrote, so
// that nobody spins on another device's memory. All zero before the first kernel of any rank.
//
// Block i of a rank meets block i of every peer, twice per call: at the entry, when the rows in its
// window are written, and at the exit, when it has read its peers' rows and they may be written
// again. Calls are told apart by an epoch, which every block counts for itself on the device, so
// that a replayed graph needs no new arguments. A block that gives up (a peer is late, calls
// differ) sets `broken` and signals nothing more; who sees `broken` set, at any time, gives up too.
namespace symmoe::kernels {

// Ranks that can combine by kernels of their own: the bits of a row's mask.
constexpr int kMaxPeers = 64;

// The largest grid of a kernel that waits for peers. Its blocks must all run at the same time as
// those of other lanes' kernels; docs/device_kernels.md has the sum.
constexpr int kMaxBlocks = 64;

// Windows of one group that can be in use at once: rows of the table of addresses.
constexpr int kMaxOrdinals = 256;

// What a block of one rank tells the same block of another at the entry. One sector of 32 bytes:
// the stamp is stored last, with release, and whoever has seen it by an acquiring load may read the
// rest until it signals the exit.
struct alignas(32) EntrySignal {
  uint64_t stamp;    // epoch << 32 | signature of the call
  uint32_t values;   // hash of what only the device knows: sizes, masks
  uint32_t ordinal;  // the window in which its rows are
  uint64_t offset;   // of its rows there, in bytes
  uint64_t unused[1];
};

struct alignas(256) SignalPage {
  // [block][rank that wrote it]
  EntrySignal entry[kMaxBlocks][kMaxPeers];
  uint32_t exit[kMaxBlocks][kMaxPeers];  // the epoch
  // How many calls each block of this rank has finished. Nobody else's.
  uint32_t epoch[kMaxBlocks];
  // 0, or 1 + the rank that gave up. Written by anyone, never cleared.
  uint32_t broken;
};

constexpr size_t kSignalPageBytes = sizeof(SignalPage);

}  // namespace symmoe::kernels
