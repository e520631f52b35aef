#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "collectives/device/peer_calls.h"
#include "collectives/device/problem.h"
#include "collectives/plan.h"
#include "kernels/epilogue.h"
#include "runtime/device.h"
#include "runtime/nccl/communicator.h"

namespace symmoe {

// The ways to move rows between devices. The numbers are part of the Python bindings.
enum class PathKind : int {
  kLocal = 0,
  kDirect = 1,
  kPlain = 2,
  kGrouped = 3,
  kOrdered = 4,
  kPull = 5,
  kRouted = 6,
  kFused = 7,
};
constexpr int kPathKinds = 8;

constexpr uint32_t bit_of(PathKind kind) { return 1u << static_cast<int>(kind); }
constexpr uint32_t kAllPaths = (1u << kPathKinds) - 1;
// By kernels of our own, which wait for the peers and read their windows.
constexpr uint32_t kOwnKernels =
    bit_of(PathKind::kPull) | bit_of(PathKind::kRouted) | bit_of(PathKind::kFused);

// Whether a path reads only the rows that a routing says are there. All others want every row
// written, with zeros where a rank holds nothing.
constexpr bool takes_routing(PathKind kind) {
  return kind == PathKind::kRouted || kind == PathKind::kFused;
}

// What the group has for its paths; the same on all ranks. Reasons are empty where it has the
// thing.
struct Resources {
  Communicator* communicator = nullptr;  // null: no NCCL
  Communicator* plain = nullptr;         // knows no windows; null: not made
  bool nccl_windows = false;             // the windows are ones that `communicator` knows
  std::string no_communicator;
  std::string no_windows;
  std::string no_direct;       // why NCCL must not read windows, where there are any
  std::string no_peers;        // why own kernels cannot read the peers' windows
  uint32_t paths = kAllPaths;  // those that may be taken, by bit_of
};

// One call, ready to be queued. Pointers are device memory.
struct Transfer {
  const Plan& plan;
  const std::byte* send = nullptr;  // all that this rank offers
  std::byte* receive = nullptr;
  std::byte* scratch = nullptr;  // as many bytes as the path asked for
  StreamHandle stream = nullptr;
  const Device& device;
  const Resources& resources;
  const PeerCall* peers = nullptr;              // for own kernels
  const kernels::Epilogue* epilogue = nullptr;  // for paths that take one
};

// A way to do a collective. The output may be exactly the own rows of the input.
class DevicePath {
 public:
  virtual ~DevicePath() = default;
  virtual PathKind kind() const = 0;
  virtual const char* name() const = 0;
  // Why this path cannot do it; empty if it can.
  virtual std::string refusal(const Problem& problem, const Resources& resources) const = 0;
  // Whether it sends from a window, so that other input has to be copied into one first.
  virtual bool sends_from_window() const { return false; }
  // Whether it does an epilogue in the pass that sums.
  virtual bool takes_epilogue() const { return false; }
  // Bytes of scratch memory; equal on all ranks.
  virtual size_t scratch_bytes(const Problem&) const { return 0; }
  // Queues the work. Does not wait.
  virtual void run(const Transfer& transfer) const = 0;
};

const DevicePath& path_of(PathKind kind);

}  // namespace symmoe
