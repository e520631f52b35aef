#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "collectives/device/caller.h"
#include "collectives/device/device_lane.h"
#include "collectives/device/device_plan.h"
#include "collectives/device/faults.h"
#include "collectives/device/selector.h"
#include "collectives/device/watchdog.h"
#include "pool/pool.h"
#include "runtime/nccl/communicator.h"
#include "windows/agreement.h"
#include "windows/device_source.h"
#include "windows/nccl_source.h"

namespace symmoe {

struct DeviceEngineConfig {
  PoolConfig pool;
  Tuning tuning;
  LinkRates rates;
  int64_t deadline_ns = 300'000'000'000;  // how long a queued collective may take
  int64_t look_ns = 250'000'000;          // between two looks at peers and queued work
  bool check = false;                     // compare calls across ranks before each one
};

// What a group works with, made before it. Null communicators: see Resources.
struct DeviceParts {
  std::shared_ptr<Device> device;
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<Communicator> plain;
  std::string no_communicator;  // why there is none
  std::string no_windows;       // why none are to be tried
  Agreement* agreement = nullptr;
  Liveness* peers = nullptr;
};

// Calls queued, by path; and copies in front of them.
struct DeviceCounts {
  std::array<std::atomic<uint64_t>, kPathKinds> paths{};
  std::atomic<uint64_t> staged = 0;
};

// One rank's part in a group of devices. Nothing here waits for a device, but for close, suspend
// and the calls marked "collective", which wait for the other ranks' hosts.
//
// Methods may be called from several threads, one thread per role and lane: a second one gets
// InvalidArgument. What one thread does in two lanes, and every collective, has the same order on
// all ranks. Whatever throws anything but InvalidArgument, Mismatch or Closed has poisoned the
// group.
class DeviceEngine {
 public:
  // Local, so that ranks can tell each other whether it worked before they go on together.
  DeviceEngine(int rank, int world, DeviceParts parts, const DeviceEngineConfig& config);
  // Closes it, if nobody has.
  ~DeviceEngine();
  DeviceEngine(const DeviceEngine&) = delete;
  DeviceEngine& operator=(const DeviceEngine&) = delete;

  // Collective, and the first call: makes the first window, so that NCCL's own set-up happens now.
  void start();

  int rank() const { return rank_; }
  int world() const { return world_; }

  // The current buffer of (role, lane), at least `bytes` large, free to be written by what `stream`
  // is given from now on; null if there can be none, with the reason in refusal(). Idempotent until
  // the buffer is reduced. If a "combine" buffer has to grow, that is collective; a capture forbids
  // growth. "dispatch" buffers are this rank's own affair: ranks have different numbers of rows to
  // gather, and no path reads them at a peer.
  std::shared_ptr<Buffer> acquire(Role role, int lane, size_t bytes, StreamHandle stream);
  // The same for a buffer that acquire gave before; false if it was outgrown since.
  bool rearm(Buffer& buffer, StreamHandle stream);
  std::string refusal() const;

  // The top-k sum on this device, into any memory of it. What it finds wrong with its index is not
  // reported by the call of this thread that goes on with the sum: its peers are waiting for it.
  void topk_reduce(kernels::TopkReduceLaunch launch, StreamHandle stream);

  // Each: collective, queued on `stream`. `output` takes plan.output_bytes(). False: no path can do
  // it here, which all ranks know alike; nothing was queued.
  // From a pool buffer, at `offset`: zero staging where the path sends from a window.
  bool run(const DevicePlan& plan, Buffer& buffer, size_t offset, void* output, StreamHandle stream,
           bool deterministic);
  // From any other device memory. `output` may be exactly the own rows of `input`. Where the path
  // sends from a window it is copied into the lane's, or, if that is acquired, into one for this
  // purpose. NCCL wants the same window of all ranks: of those that come here, either all have
  // acquired the lane's or none.
  bool run(const DevicePlan& plan, const void* input, void* output, StreamHandle stream,
           bool deterministic);

  // The paths for a plan, best first.
  std::vector<Candidate> explain(const DevicePlan& plan, bool deterministic) const;

  // All collective, as in Engine.
  std::string reserve(const std::vector<Role>& roles, int lanes, size_t bytes, bool pin);
  void trim();
  void release_graphs();
  void retain(Buffer& buffer);
  // Collective. Gives back all windows; InvalidArgument on all ranks, with what holds them, if a
  // graph or a view does on any. resume makes windows of the old sizes.
  void suspend();
  void resume();

  // A window that holds `address`, with the offset of it; null if none does.
  std::shared_ptr<Buffer> find(const void* address, size_t* offset) const;
  bool overlaps(const void* address, size_t bytes) const;

  // Throws if the group cannot do another call, or a kernel has met a wrong value.
  void check();
  void poison(const std::string& reason);
  // Waits for the work in flight, deregisters, frees, in this order. Windows under live views stay
  // readable for this rank.
  void close();

  PoolStats pool_stats() const;
  PoolStats scratch_stats() const { return scratch_.stats(); }
  const DeviceCounts& counts() const { return counts_; }
  const std::string& no_windows() const { return resources_.no_windows; }
  const std::string& no_communicator() const { return resources_.no_communicator; }

 private:
  Caller by(const char* operation) const { return {operation, rank_}; }
  std::string at(const char* operation) const { return by(operation).text(); }
  void require_own_process(const char* operation) const;
  void require_usable(const char* operation) const;
  void require_no_faults(const char* operation, const void* summed = nullptr);
  DeviceLane& lane(Role role, int number, const char* operation);
  void refuse(const std::string& reason);
  void look();
  template <typename Body>
  auto guarded(Body&& body);

  // Buffers (memory_calls.cpp).
  void make_first_window();
  Pool& pool_of(const Slot& slot) { return slot.role == Role::kDispatch ? private_ : pool_; }
  std::shared_ptr<Buffer> buffer_for(const Slot& slot, size_t bytes, const CaptureState& capture,
                                     const char* operation);
  std::shared_ptr<Buffer> scratch_for(const Plan& plan, size_t bytes, const CaptureState& capture);
  std::string make_buffers(const std::vector<Slot>& slots, size_t bytes, const std::string& request,
                           const std::string& refusal);
  std::string make_private(Pool& pool, const std::vector<Slot>& slots, size_t bytes,
                           const std::string& request);
  void lose_windows(const std::string& reason);
  void lose_broken_communicator();
  void give_back(const std::string& request, bool unpin);
  void wait_until_unused();
  bool settled(const Buffer& buffer) const;

  // Calls (transfer_calls.cpp).
  struct Source;
  Resources resources_for(const Problem& problem) const;
  const DevicePath* path_for(const DevicePlan& plan, bool deterministic) const;
  void require_fit(const Plan& plan, const void* output) const;
  void require_source(const Plan& plan, const Buffer& buffer, size_t offset) const;
  void compare(const Plan& plan, const Buffer* window, size_t offset, bool deterministic);
  bool queue(const DevicePlan& plan, const Source& source, void* output, StreamHandle stream,
             bool deterministic);
  std::shared_ptr<Buffer> staging_for(const Plan& plan, const CaptureState& capture);

  int rank_;
  int world_;
  DeviceParts parts_;
  DeviceEngineConfig config_;
  Resources resources_;
  std::atomic<uint32_t> resources_version_ = 1;
  Selector selector_;
  std::unique_ptr<NcclSource> nccl_windows_;
  DeviceSource lone_windows_;  // of a world of one, which needs no NCCL
  DeviceSource private_memory_;
  DeviceSource scratch_memory_;
  Pool pool_;                     // windows
  Pool private_;                  // what is acquired and no peer reads
  Pool scratch_;                  // what paths need for themselves
  std::deque<DeviceLane> lanes_;  // by role and lane
  Faults faults_;
  DeviceCounts counts_;
  std::mutex nccl_mutex_;  // communicators are not thread-safe
  std::mutex growth_mutex_;
  std::atomic<bool> closed_ = false;
  std::atomic<bool> suspended_ = false;
  std::atomic<bool> watches_nccl_ = false;       // its failures end the group
  std::vector<std::pair<Slot, size_t>> asleep_;  // what resume makes again
  std::mutex close_mutex_;
  uint64_t generation_;  // of forks, at creation
  mutable std::mutex text_mutex_;
  std::string refusal_;
  std::string poison_;
  std::atomic<bool> poisoned_ = false;
  Watchdog watchdog_;  // last: it may call poison as long as it lives
};

template <typename Body>
auto DeviceEngine::guarded(Body&& body) {
  try {
    return body();
  } catch (const InvalidArgument&) {
    throw;
  } catch (const Closed&) {
    throw;
  } catch (const Mismatch&) {
    throw;  // every rank saw it in the same place
  } catch (const std::exception& error) {
    poison(error.what());
    throw;
  }
}

}  // namespace symmoe
