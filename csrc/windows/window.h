#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace symmoe {

// Memory that every rank of the group can read: one allocation, written by its owner alone.
// Ordinals count a rank's own windows from 1 and are never reused, so an ordinal names one piece
// of memory for the whole life of the group.
struct Window {
  uint32_t ordinal = 0;
  std::byte* base = nullptr;  // in the owner's address space; 2 MiB aligned
  size_t bytes = 0;
  std::shared_ptr<void> memory;  // the owner's mapping lives while any copy of this does
};

// Where windows come from. Implementations: shared memory between processes (memfd_source.h), and
// in tests, memory that threads share.
class WindowSource {
 public:
  virtual ~WindowSource() = default;

  // Allocates the next window of this rank, with its pages present, and announces it to the peers.
  // Local: no peer has to take part. Throws OutOfMemory; nothing has changed then.
  virtual Window create(size_t bytes) = 0;

  // Gives back a window of this rank that will never be published again and that no peer reads any
  // more. Peers give up their mapping when they next look at the announcements; the own mapping
  // ends with the last copy of `window.memory`.
  virtual void drop(const Window& window) = 0;

  // Address in this process of window `ordinal` of `rank`; waits for its announcement if need be.
  virtual const std::byte* address(int rank, uint32_t ordinal) = 0;

  // Takes in all announcements that have arrived: maps and populates new windows of peers, unmaps
  // dropped ones. Called in collective pool calls, so that the first reduce finds its pages there.
  // Throws SystemError, never OutOfMemory, if a peer's window cannot be mapped.
  virtual void refresh() = 0;

  // Bytes of peers' windows mapped here.
  virtual size_t mapped_bytes() const = 0;
};

// Whether the peers can still take part. Asked now and then by a rank that waits.
class Liveness {
 public:
  virtual ~Liveness() = default;

  // Throws PeerLost if `rank` ended or closed the group. Cheap enough for every 100 ms.
  virtual void check(int rank) = 0;
};

}  // namespace symmoe
