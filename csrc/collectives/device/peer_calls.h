#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "collectives/plan.h"
#include "kernels/device/launch.h"
#include "runtime/device_memory.h"
#include "runtime/stream.h"
#include "windows/peer_windows.h"

namespace symmoe {

// Which ranks hold something of which row, as a mask kernel found it. Device memory.
struct RouteMask {
  const uint64_t* mask = nullptr;
  const kernels::MaskHash* hash = nullptr;
};

// What kernels of our own need for one call.
struct PeerCall {
  kernels::PullLaunch pull;                        // all but the output
  const kernels::TopkReduceLaunch* sum = nullptr;  // what a fused kernel makes first
};

// Where this rank's rows of a call are, and what only the device knows of it.
struct PeerRows {
  uint32_t ordinal = 0;            // of the window
  size_t offset = 0;               // in it; a multiple of kPeerAlignment
  const int32_t* sizes = nullptr;  // device memory, where the plan has none of its own
  int64_t output_rows = 0;         // that the output has room for
  RouteMask route = {};            // nothing in it: every row counts
};

// Which of a call's rows are whose, by the plan or by `sizes`, for at most kMaxPeers ranks.
kernels::RowShares shares_of(const Plan& plan, const int32_t* sizes, int64_t output_rows);

// Rows begin there, for the widest loads.
constexpr size_t kPeerAlignment = 16;

// The side of a group that its own kernels see: the peers' windows, and signals for each lane.
class PeerKernels {
 public:
  // `fault`: where kernels report. `deadline_ns`: of each wait for a peer.
  PeerKernels(std::shared_ptr<Device> device, kernels::Fault* fault, int64_t deadline_ns);

  // `peers` outlives the last call; `blocks`: the most that all lanes together allow one kernel,
  // the same on all ranks.
  void use(const PeerWindows& peers, int rank, int world, int blocks);

  // The call for kernels; `tag` tells ways apart that must not meet.
  PeerCall call(const Plan& plan, const PeerRows& rows, uint32_t tag) const;

  // Lets what waits on this device for a peer give up. For a group that has failed.
  void give_up() noexcept;
  // Waits for that; from now on there is nothing to give up. Before the peers' windows go.
  void stop() noexcept;

 private:
  std::shared_ptr<Device> device_;
  kernels::Fault* fault_;
  int64_t deadline_ns_;
  const PeerWindows* peers_ = nullptr;
  int rank_ = 0;
  int world_ = 1;
  int blocks_ = 1;
  // For give_up: what is to be written, and the addresses of this rank's pages, in pinned memory.
  PinnedMemory notes_;
  std::unique_ptr<Stream> stream_;
  std::mutex mutex_;  // of giving up and stopping
  bool stopped_ = false;
};

}  // namespace symmoe
