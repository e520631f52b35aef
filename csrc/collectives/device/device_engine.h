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
#include "collectives/device/device_call.h"
#include "collectives/device/device_lane.h"
#include "collectives/device/device_plan.h"
#include "collectives/device/device_windows.h"
#include "collectives/device/faults.h"
#include "collectives/device/peer_calls.h"
#include "collectives/device/selector.h"
#include "collectives/device/watchdog.h"
#include "pool/pool.h"
#include "runtime/nccl/communicator.h"
#include "windows/agreement.h"
#include "windows/device_source.h"

namespace symmoe {

struct DeviceEngineConfig {
  PoolConfig pool;
  Tuning tuning;
  LinkRates rates;
  uint32_t paths = kAllPaths;               // those that may be taken, by bit_of
  WindowMaker windows = WindowMaker::kAny;  // whose windows to try
  int64_t deadline_ns = 300'000'000'000;    // how long a queued collective may take
  int64_t look_ns = 250'000'000;            // between two looks at peers and queued work
  bool check = false;                       // compare calls across ranks before each one
};

// What a group works with, made before it. Null communicators: see Resources.
struct DeviceParts {
  std::shared_ptr<Device> device;
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<Communicator> plain;
  std::string no_communicator;  // why there is none
  std::string no_windows;       // why none are to be tried
  NcclCapabilities nccl;
  int blocks = 1;  // for one own kernel: so many fit beside those of all lanes, on every rank
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

  // Each: collective, queued on the call's stream. `call.output` takes plan.output_bytes(), or,
  // with sizes on the device, what it says it has room for. It lies where why_no_output has
  // nothing against it: gathering from or into a window is the last use of that.
  // False: no path can do it here, which all ranks know alike; nothing was queued. Throws
  // Unavailable, likewise, where sizes are on the device and no path reads them.
  // From a pool buffer, at `offset`: zero staging where the path sends from a window.
  bool run(const DevicePlan& plan, Buffer& buffer, size_t offset, const DeviceCall& call);
  // From any other device memory. The output may be exactly the own rows of `input`. Where the path
  // sends from a window it is copied into the lane's, or, if that is acquired, into one for this
  // purpose. NCCL wants the same window of all ranks: of those that come here, either all have
  // acquired the lane's or none. Own kernels do not.
  bool run(const DevicePlan& plan, const void* input, const DeviceCall& call);
  // The top-k sum into the lane's window, and reduce_scatter. `sum` needs no output. False also
  // where there is no window for it.
  bool combine(const DevicePlan& plan, kernels::TopkReduceLaunch sum, const DeviceCall& call);

  // A routing for calls of this group.
  std::unique_ptr<DeviceRouting> make_routing(const kernels::RouteMaskLaunch& view) const;
  // Whether a call on `stream` needs new memory for its masks; and takes such.
  bool needs_memory(const DeviceRouting& routing, StreamHandle stream) const;
  void give(DeviceRouting& routing, uint64_t* memory, StreamHandle stream) const;
  // The top-k sum of a call that no path can do, for whoever reads all rows but padding: zeros
  // where its routing, if any, says that this rank has nothing. Into other memory than a window.
  void fill_out(const DevicePlan& plan, kernels::TopkReduceLaunch sum, const DeviceCall& call);

  // A call that somebody else serves on a stream: before its work is queued, and behind it. Its
  // output may lie where that of other calls may. Costs nothing where it uses none of the pool's
  // memory.
  void begin_outside(const OutsideCall& call);
  void end_outside(const OutsideCall& call);
  // The epilogue of a call that no path could do, once its sums are there: in call.sums if it
  // quantises, else in the output. Behind what the stream has been given.
  void finish(const DevicePlan& plan, const DeviceCall& call);

  // The paths for a plan, best first.
  std::vector<Candidate> explain(const DevicePlan& plan, const CallForm& form) const;

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
  // Why no call of `lane` may write its rows there; empty if one may.
  std::string why_no_output(const void* output, size_t bytes, int lane) const;

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
  std::string no_direct() const { return resources_snapshot().no_direct; }
  std::string no_peers() const { return resources_snapshot().no_peers; }
  // "NCCL", "VMM", or "" where there are none, or none that peers see.
  const char* window_maker() const { return windows_.maker(); }

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
  void find_windows();
  void note_peers();
  Pool& pool_of(const Slot& slot) { return slot.role == Role::kDispatch ? private_ : pool_; }
  std::shared_ptr<Buffer> buffer_for(const Slot& slot, size_t bytes, const CaptureState& capture,
                                     const char* operation);
  std::shared_ptr<Buffer> writable_window(const Slot& slot, size_t bytes,
                                          const CaptureState& capture, StreamHandle stream,
                                          const char* operation);
  std::shared_ptr<Buffer> scratch_for(const Plan& plan, size_t bytes, const CaptureState& capture,
                                      Use use = Use::kStage);
  std::string make_buffers(const std::vector<Slot>& slots, size_t bytes, const std::string& request,
                           const std::string& refusal);
  std::string make_private(Pool& pool, const std::vector<Slot>& slots, size_t bytes,
                           const std::string& request);
  void lose_broken_communicator(const std::string& why);
  void give_back(const std::string& request, bool unpin);
  void wait_until_unused();
  bool settled(const Buffer& buffer) const;

  // Calls (transfer_calls.cpp; combine in combine_calls.cpp; outputs in output_calls.cpp).
  struct Source;
  class Output;
  static CallForm form_of(const DeviceCall& call, const Source& source);
  Resources resources_snapshot() const;
  Resources resources_for(const Problem& problem) const;
  const DevicePath* path_for(const DevicePlan& plan, const CallForm& form) const;
  std::shared_ptr<Buffer> require_fit(const Plan& plan, const DeviceCall& call) const;
  std::shared_ptr<Buffer> output_window(const char* operation, int lane, const void* output,
                                        size_t bytes, const std::string& text) const;
  void require_writable(const char* operation, const Buffer& window, const std::string& text) const;
  void require_epilogue(const Plan& plan, const DeviceCall& call) const;
  void require_path(const DevicePlan& plan, const CallForm& form, const DevicePath* path) const;
  void require_source(const Plan& plan, const Buffer& buffer, size_t offset) const;
  void compare(const Plan& plan, const CallForm& form, const Buffer* window, size_t offset);
  bool queue(const DevicePlan& plan, const Source& source, const DeviceCall& call,
             const Output& output);
  void send(const Plan& rows, const DevicePath& path, const Source& source, const Buffer* staged,
            const DeviceCall& call, std::byte* scratch);
  void pull(const Plan& rows, const DevicePath& path, const Source& source, const Buffer* staged,
            const DeviceCall& call, Transfer transfer);
  bool must_stage(const DevicePath& path, const Source& source, bool rows_missing) const;
  std::shared_ptr<Buffer> staging_for(const Plan& plan, const DevicePath& path, bool rows_missing,
                                      const CaptureState& capture);
  void stage(const Plan& plan, const Source& source, std::byte* to, bool rows_missing,
             const DeviceCall& call);
  // Epilogues (epilogue_calls.cpp).
  static size_t output_size(const Plan& plan, const DeviceCall& call);
  void finish(const Plan& rows, const DeviceCall& call) const;
  // Routings (staging_calls.cpp).
  RouteMask mask_of(const Plan& plan, const DeviceCall& call);
  kernels::RoutingView view_of(const DeviceCall& call, const RouteMask& route) const;
  void leave_out_padding(const Plan& plan, const DeviceCall& call,
                         kernels::TopkReduceLaunch& sum) const;

  int rank_;
  int world_;
  DeviceParts parts_;
  DeviceEngineConfig config_;
  Resources resources_;
  std::atomic<uint32_t> resources_version_ = 1;
  Selector selector_;
  DeviceWindows windows_;
  DeviceSource private_memory_;
  DeviceSource scratch_memory_;
  Pool pool_;                     // windows
  Pool private_;                  // what is acquired and no peer reads
  Pool scratch_;                  // what paths need for themselves
  std::deque<DeviceLane> lanes_;  // by role and lane
  Faults faults_;
  PeerKernels kernels_;
  std::shared_ptr<MaskHashes> hashes_;  // also of routings that outlive the group
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
