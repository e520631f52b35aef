#include "collectives/device/device_engine.h"

#include <utility>

#include "base/clock.h"
#include "windows/fork_guard.h"

namespace symmoe {
namespace {

// Between the deadline of a kernel that waits for peers and that of a queued call.
constexpr int64_t kKernelsGraceNs = 1'000'000'000;

// Output of the last top-k sum that this thread has queued, if no other call came since.
thread_local const void* sum_of_thread = nullptr;

PoolConfig without_own_trims(PoolConfig config) {
  config.trims_on_growth = false;  // ranks deregister together
  return config;
}

std::deque<DeviceLane> make_lanes(const std::shared_ptr<Device>& device) {
  std::deque<DeviceLane> lanes;
  for (int each = 0; each < kRoles * kMaxLanes; ++each) lanes.emplace_back(device);
  return lanes;
}

}  // namespace

DeviceEngine::DeviceEngine(int rank, int world, DeviceParts parts, const DeviceEngineConfig& config)
    : rank_(rank),
      world_(world),
      parts_(std::move(parts)),
      config_(config),
      resources_{.communicator = parts_.communicator.get(),
                 .plain = parts_.plain.get(),
                 .no_communicator = parts_.no_communicator,
                 .no_windows = parts_.no_windows,
                 .no_direct = parts_.no_windows,
                 .no_peers = parts_.no_windows,
                 .paths = config.paths},
      selector_(config.rates, config.tuning),
      windows_(parts_.device, parts_.communicator, parts_.agreement, rank, world,
               config.deadline_ns),
      private_memory_(parts_.device),
      scratch_memory_(parts_.device),
      pool_(&windows_, without_own_trims(config.pool),
            [this](const Buffer& buffer) { return settled(buffer); }),
      private_(&private_memory_, config.pool,
               [this](const Buffer& buffer) { return settled(buffer); }),
      scratch_(&scratch_memory_, config.pool,
               [this](const Buffer& buffer) { return settled(buffer); }),
      lanes_(make_lanes(parts_.device)),
      faults_(parts_.device),
      kernels_(parts_.device, faults_.record(), config.deadline_ns),
      hashes_(std::make_shared<MaskHashes>(parts_.device)),
      generation_(fork_generation()),
      watchdog_(
          config.look_ns,
          [this] {
            parts_.device->adopt_thread();
            look();
          },
          [this](const std::string& why) { poison(why); }) {}

DeviceEngine::~DeviceEngine() {
  try {
    close();
  } catch (const std::exception&) {
    // The device refuses to say whether its work has ended. There is nobody to tell.
  }
  watchdog_.stop();
  kernels_.stop();
  windows_.shut();  // before the pool lets go of the memory
}

void DeviceEngine::start() {
  if (world_ == 1 || resources_.no_windows.empty()) find_windows();
  watches_nccl_ = resources_.communicator != nullptr;
}

DeviceLane& DeviceEngine::lane(Role role, int number, const char* operation) {
  if (number < 0 || number >= kMaxLanes) {
    throw InvalidArgument(at(operation) + ": lane " + std::to_string(number) + " is not in 0.." +
                          std::to_string(kMaxLanes - 1));
  }
  return lanes_[static_cast<size_t>(role) * kMaxLanes + static_cast<size_t>(number)];
}

// Before any lock is taken: another thread may have held it when this process was forked.
void DeviceEngine::require_own_process(const char* operation) const {
  if (fork_generation() != generation_) {
    throw Closed(at(operation) +
                 ": this process is a fork of the one that made the group; make a new group here");
  }
}

void DeviceEngine::require_usable(const char* operation) const {
  require_own_process(operation);
  if (closed_.load(std::memory_order_relaxed)) {
    throw Closed(at(operation) + ": the group is closed");
  }
  if (poisoned_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(text_mutex_);
    throw Poisoned(at(operation) + ": the group failed: " + poison_);
  }
  if (suspended_.load(std::memory_order_relaxed)) {
    throw InvalidArgument(at(operation) + ": the group is suspended; call resume() first");
  }
}

// `summed`: the rows that the call goes on with. Its peers wait for it: wrong values can wait, but
// not that they are gone.
void DeviceEngine::require_no_faults(const char* operation, const void* summed) {
  const void* const last_sum = std::exchange(sum_of_thread, nullptr);
  try {
    faults_.raise(operation, rank_, last_sum != nullptr && last_sum == summed);
  } catch (const Error& error) {  // the ranks' kernels go together no longer
    poison(error.what());
    throw;
  }
}

void DeviceEngine::refuse(const std::string& reason) {
  const std::lock_guard lock(text_mutex_);
  refusal_ = reason;
}

std::string DeviceEngine::refusal() const {
  const std::lock_guard lock(text_mutex_);
  return refusal_;
}

void DeviceEngine::topk_reduce(kernels::TopkReduceLaunch launch, StreamHandle stream) {
  require_usable("topk_reduce");
  require_no_faults("topk_reduce");
  require_memory(by("topk_reduce"), launch);
  require_aligned(by("topk_reduce"), launch);
  launch.fault = faults_.record();
  // Into a window it counts as a use of the lane, whose next call may be in another stream, or
  // none.
  size_t offset = 0;
  const std::shared_ptr<Buffer> window = find(launch.output, &offset);
  if (window == nullptr) {
    guarded([&] { parts_.device->topk_reduce(launch, stream); });
  } else {
    DeviceLane& here = lane(window->slot.role, window->slot.lane, "topk_reduce");
    const LaneCall call(here, by("topk_reduce"));
    guarded([&] {
      const CaptureState capture = parts_.device->capture_state(stream);
      parts_.device->topk_reduce(launch, stream);
      if (capture.active) window->pinned = true;
      here.note(stream, capture);
    });
  }
  sum_of_thread = launch.output;
}

void DeviceEngine::fill_out(const DevicePlan& plan, kernels::TopkReduceLaunch sum,
                            const DeviceCall& call) {
  require_usable("combine");
  sum.fault = faults_.record();
  require_memory(by("combine"), sum);
  require_aligned(by("combine"), sum);
  guarded([&] {
    if (call.routing != nullptr) {
      sum.routing = view_of(call, call.summed ? mask_of(plan.plan, call) : RouteMask{});
    }
    leave_out_padding(plan.plan, call, sum);
    const size_t bytes = static_cast<size_t>(sum.tokens * sum.hidden) * size_of(sum.output_type);
    if (call.summed) parts_.device->fill(sum.output, 0, bytes, call.stream);
    if (sum.tokens > 0) parts_.device->topk_reduce(sum, call.stream);
  });
  sum_of_thread = sum.output;
}

// --- failures ------------------------------------------------------------------------------------

// From the watchdog's thread.
void DeviceEngine::look() {
  for (int rank = 0; parts_.peers != nullptr && rank < world_; ++rank) {
    if (rank != rank_) parts_.peers->check(rank);
  }
  if (watches_nccl_.load()) {
    parts_.communicator->check();
    if (parts_.plain != nullptr) parts_.plain->check();
  }
  // A kernel that gave up says more than that a call did not end: it gets a little longer.
  const std::string lost = faults_.lost_peer(rank_);
  if (!lost.empty()) throw DeadlineExceeded(lost);
  const int64_t oldest = now_ns() - config_.deadline_ns - kKernelsGraceNs;
  const RelaxedCapture relaxed(*parts_.device);
  for (size_t number = 0; number < lanes_.size(); ++number) {
    const int64_t since = lanes_[number].pending_since_ns();
    if (since == 0 || since >= oldest) continue;
    throw DeadlineExceeded(std::string(name_of(static_cast<Role>(number / kMaxLanes))) + ", lane " +
                           std::to_string(number % kMaxLanes) + ", rank " + std::to_string(rank_) +
                           ": a queued call did not end within " +
                           std::to_string(config_.deadline_ns / 1'000'000) + " ms");
  }
}

void DeviceEngine::check() {
  require_usable("check");
  require_no_faults("check");
  guarded([&] { look(); });
}

void DeviceEngine::poison(const std::string& reason) {
  if (fork_generation() != generation_) return;
  {
    const std::lock_guard lock(text_mutex_);
    if (poisoned_.load(std::memory_order_relaxed)) return;  // the first failure is the cause
    poison_ = reason.substr(0, reason.find('\n'));          // the rest says where, not what
    poisoned_.store(true, std::memory_order_release);
  }
  // What waits on the device for a peer ends now.
  kernels_.give_up();
  if (parts_.communicator != nullptr) parts_.communicator->abort(&nccl_mutex_);
  if (parts_.plain != nullptr) parts_.plain->abort(&nccl_mutex_);
}

// --- queries and the end -------------------------------------------------------------------------

std::shared_ptr<Buffer> DeviceEngine::find(const void* address, size_t* offset) const {
  require_own_process("find");
  const auto* const byte = static_cast<const std::byte*>(address);
  auto found = pool_.find(byte, offset);
  return found != nullptr ? found : private_.find(byte, offset);
}

bool DeviceEngine::overlaps(const void* address, size_t bytes) const {
  require_own_process("overlaps");
  const auto* const begin = static_cast<const std::byte*>(address);
  return pool_.overlaps(begin, bytes) || private_.overlaps(begin, bytes) ||
         scratch_.overlaps(begin, bytes);
}

PoolStats DeviceEngine::pool_stats() const {
  require_own_process("stats");
  PoolStats stats = pool_.stats();
  return stats += private_.stats();
}

std::vector<Candidate> DeviceEngine::explain(const DevicePlan& plan, const CallForm& form) const {
  const Problem problem = problem_of(plan.plan, form);
  return selector_.rank(problem, resources_for(problem));
}

bool DeviceEngine::settled(const Buffer& buffer) const {
  const RelaxedCapture relaxed(*parts_.device);
  return lanes_[static_cast<size_t>(buffer.slot.role) * kMaxLanes +
                static_cast<size_t>(buffer.slot.lane)]
      .done();
}

void DeviceEngine::close() {
  if (fork_generation() != generation_) return;  // a fork has nothing to close
  const std::lock_guard lock(close_mutex_);
  if (closed_.load(std::memory_order_relaxed)) return;
  // A call that runs now would lose its memory under its feet.
  std::deque<LaneCall> taken;
  for (DeviceLane& each : lanes_) taken.emplace_back(each, by("close"));
  try {
    wait_until_unused();
  } catch (const Error& error) {
    poison(error.what());  // the device fails: there is nothing to wait for
  }
  for (LaneCall& each : taken) each.keep();  // none begins any more
  closed_.store(true, std::memory_order_relaxed);
  watchdog_.stop();
  kernels_.stop();
  const std::lock_guard nccl(nccl_mutex_);
  windows_.shut();
}

}  // namespace symmoe
