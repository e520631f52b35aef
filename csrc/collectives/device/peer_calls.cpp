#include "collectives/device/peer_calls.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "kernels/device/peer_grid.h"
#include "pool/buffer.h"

namespace symmoe {
namespace {

constexpr int kSignalRole = 0;  // own kernels reduce, and do nothing else

// What give_up needs of the host: written once, read by copies.
struct Notes {
  std::byte* pages[kMaxLanes];    // of this rank, by lane
  void* row[kernels::kMaxPeers];  // of the table that is looked at
  uint32_t broken;
};

// 32 bits of a 64-bit hash that a tag has been mixed into (splitmix64's finish).
uint32_t fold(uint64_t hash, uint32_t tag) {
  uint64_t mixed = hash + tag * uint64_t{0x9e3779b97f4a7c15};
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return static_cast<uint32_t>(mixed ^ (mixed >> 32));
}

}  // namespace

kernels::RowShares shares_of(const Plan& plan, const int32_t* sizes, int64_t output_rows) {
  kernels::RowShares shares;
  if (sizes != nullptr) {
    shares.sizes = sizes;
    shares.padded_to = plan.padded_to;
    shares.rows = plan.rows;
    shares.output_rows = output_rows;
    return shares;
  }
  for (size_t rank = 0; rank < plan.counts.size(); ++rank) {
    shares.begins[rank] = plan.begins[rank];
    shares.counts[rank] = plan.counts[rank];
  }
  return shares;
}

PeerKernels::PeerKernels(std::shared_ptr<Device> device, kernels::Fault* fault, int64_t deadline_ns)
    : device_(std::move(device)), fault_(fault), deadline_ns_(deadline_ns) {}

void PeerKernels::use(const PeerWindows& peers, int rank, int world, int blocks) {
  peers_ = &peers;
  rank_ = rank;
  world_ = world;
  blocks_ = blocks;
  const RelaxedCapture relaxed(*device_);
  notes_ = PinnedMemory(device_, sizeof(Notes));
  stream_ = std::make_unique<Stream>(device_);
  Notes& notes = *static_cast<Notes*>(notes_.get());
  notes.broken = static_cast<uint32_t>(rank) + 1;
  for (int lane = 0; lane < kMaxLanes; ++lane) {
    device_->copy(static_cast<void*>(notes.row),
                  static_cast<const void*>(peers.pages(kSignalRole, lane)),
                  sizeof(void*) * size_t(world), stream_->handle());
    stream_->synchronize();
    notes.pages[lane] = static_cast<std::byte*>(notes.row[rank]);
  }
}

PeerCall PeerKernels::call(const Plan& plan, const PeerRows& rows, uint32_t tag) const {
  PeerCall call;
  kernels::PullLaunch& pull = call.pull;
  pull.peers = {.signals = peers_->pages(kSignalRole, plan.lane),
                .page_offset = 0,
                .windows = peers_->windows(),
                .fault = fault_,
                .deadline_ns = static_cast<uint64_t>(deadline_ns_),
                .rank = rank_,
                .world = world_};
  pull.shares = shares_of(plan, rows.sizes, rows.output_rows);
  pull.mask = rows.route.mask;
  pull.mask_hash = rows.route.hash;
  pull.hidden = plan.hidden;
  pull.offset = rows.offset;
  pull.ordinal = rows.ordinal;
  pull.signature = fold(plan.signature, tag);
  const int64_t most = *std::max_element(plan.counts.begin(), plan.counts.end());
  pull.blocks = kernels::peer_blocks(most, plan.hidden, blocks_);
  pull.type = plan.dtype;
  return call;
}

void PeerKernels::give_up() noexcept {
  if (peers_ == nullptr || !device_->usable()) return;
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  try {
    const RelaxedCapture relaxed(*device_);
    const Notes& notes = *static_cast<const Notes*>(notes_.get());
    for (std::byte* const page : notes.pages) {
      device_->copy(page + offsetof(kernels::SignalPage, broken), &notes.broken,
                    sizeof(notes.broken), stream_->handle());
    }
  } catch (const Error&) {
    // The device takes no work any more: nothing waits on it either, or its deadline ends that.
  }
}

void PeerKernels::stop() noexcept {
  if (!device_->usable()) return;
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  if (stream_ == nullptr) return;
  try {
    stream_->synchronize();
  } catch (const Error&) {
    // The device has failed: nothing runs on it that could read the notes.
  }
}

}  // namespace symmoe
