#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "windows/mesh.h"
#include "windows/shared_memory.h"

namespace symmoe {

// One small segment per rank for flags, zeroed, which all ranks map for reading and writing
// (waiters count themselves in the line of the rank they wait for).
class Control {
 public:
  // Collective, and the first thing to use the mesh. Every rank gives the same `bytes`. On return
  // this rank has mapped all segments; others may still be at it. Throws DeadlineExceeded naming
  // the missing ranks, PeerLost, Mismatch (different `bytes`).
  Control(Mesh& mesh, size_t bytes, int64_t deadline_ns);

  std::byte* base(int rank) const { return segments_[static_cast<size_t>(rank)].data(); }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  std::vector<SharedMemory> segments_;  // by rank, the own one included
};

}  // namespace symmoe
