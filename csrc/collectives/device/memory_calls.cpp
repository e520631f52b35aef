// Buffers of a group of devices. Windows are made and given back by all ranks together: NCCL's
// registration is collective, and graphs and peers hold its addresses.
#include <algorithm>
#include <chrono>
#include <ranges>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "collectives/device/device_engine.h"
#include "collectives/device/memory_words.h"

namespace symmoe {
namespace {

// After an abort, work that waited for peers ends; but a borrowed communicator is not ours to
// abort.
constexpr int64_t kPatienceNs = 2'000'000'000;

}  // namespace

// --- getting a buffer ----------------------------------------------------------------------------

// Collective. The first window is made now, and NCCL's own set-up with it.
void DeviceEngine::find_windows() {
  const WindowWishes wishes{.maker = config_.windows,
                            .nccl = parts_.nccl,
                            .no_communicator = resources_.no_communicator,
                            .own_kernels = (config_.paths & kOwnKernels) != 0};
  const std::string reason = windows_.start(
      wishes,
      [this] {
        const std::lock_guard nccl(nccl_mutex_);
        pool_.get(Slot{}, 1);
      },
      [this](const std::string& why) { lose_broken_communicator(why); });
  resources_.no_windows = reason;
  resources_.no_direct = reason;
  resources_.no_peers = windows_.no_peers();
  resources_.nccl_windows = windows_.of_nccl();
  if (reason.empty()) {
    resources_.no_direct = parts_.nccl.no_direct;
    if (resources_.no_direct.empty() && !resources_.nccl_windows) {
      resources_.no_direct = "the windows are not NCCL's";
    }
  }
  if (resources_.no_peers.empty()) {
    kernels_.use(*windows_.peers(), rank_, world_, parts_.blocks);
  }
  ++resources_version_;
}

// After windows were made: one may be out of a peer's reach, which all ranks know alike.
void DeviceEngine::note_peers() {
  const std::string reason = windows_.no_peers();
  if (reason.empty() || !no_peers().empty()) return;
  const std::lock_guard lock(text_mutex_);
  resources_.no_peers = reason;
  ++resources_version_;
}

// Collective. A registration that failed on one rank may have left the others waiting inside NCCL,
// and the communicator in a state that no call gets out of: then the group goes on without it.
void DeviceEngine::lose_broken_communicator(const std::string& why) {
  std::string failure;
  try {
    parts_.communicator->check();
  } catch (const Error& error) {
    failure = error.what();
  }
  const std::string failures = agree(*parts_.agreement, rank_, "communicator", failure).failures;
  if (failures.empty()) return;
  resources_.communicator = nullptr;
  resources_.plain = nullptr;
  resources_.no_communicator = why + "; NCCL is of no use since: " + failures;
  parts_.communicator->abort();
  if (parts_.plain != nullptr) parts_.plain->abort();
}

std::shared_ptr<Buffer> DeviceEngine::acquire(Role role, int number, size_t bytes,
                                              StreamHandle stream) {
  require_usable("acquire");
  require_no_faults("acquire");
  const LaneCall call(lane(role, number, "acquire"), by("acquire"));
  if (!resources_.no_windows.empty()) {
    refuse(resources_.no_windows);
    return nullptr;
  }
  if (const auto reason = pool_.refuses(bytes)) {
    refuse(*reason);
    return nullptr;
  }
  return guarded([&] {
    const CaptureState capture = parts_.device->capture_state(stream);
    const Slot slot{role, number, Use::kAcquired};
    return writable_window(slot, std::max(bytes, size_t{1}), capture, stream, "acquire");
  });
}

// The lane is taken. Behind the lane's last call in the stream's order.
std::shared_ptr<Buffer> DeviceEngine::writable_window(const Slot& slot, size_t bytes,
                                                      const CaptureState& capture,
                                                      StreamHandle stream, const char* operation) {
  DeviceLane& here = lane(slot.role, slot.lane, operation);
  const auto outgrown = pool_of(slot).current(slot);
  if (outgrown != nullptr && outgrown->window.bytes < bytes && !capture.active) {
    // It is not given back before what writes it has ended.
    here.order(stream, capture, *parts_.device, by(operation));
    here.note(stream, capture);
  }
  auto buffer = buffer_for(slot, bytes, capture, operation);
  if (buffer == nullptr) return nullptr;
  here.order(stream, capture, *parts_.device, by(operation));
  buffer->armed.store(true, std::memory_order_relaxed);
  if (capture.active) buffer->pinned = true;
  return buffer;
}

bool DeviceEngine::rearm(Buffer& buffer, StreamHandle stream) {
  require_usable("acquire");
  require_no_faults("acquire");
  if (buffer.retired.load(std::memory_order_relaxed)) return false;
  DeviceLane& here = lane(buffer.slot.role, buffer.slot.lane, "acquire");
  const LaneCall call(here, by("acquire"));
  const CaptureState capture = parts_.device->capture_state(stream);
  guarded([&] { here.order(stream, capture, *parts_.device, by("acquire")); });
  buffer.armed.store(true, std::memory_order_relaxed);
  if (capture.active) buffer.pinned = true;
  return true;
}

// The lane is taken. Null if there can be none; for windows, all ranks know that alike.
std::shared_ptr<Buffer> DeviceEngine::buffer_for(const Slot& slot, size_t bytes,
                                                 const CaptureState& capture,
                                                 const char* operation) {
  Pool& pool = pool_of(slot);
  if (auto current = pool.current(slot); current != nullptr && current->window.bytes >= bytes) {
    return current;
  }
  const std::lock_guard growth(growth_mutex_);
  const std::string refusal = capture.active ? refusal_in_capture(bytes, words_of(slot)) : "";
  if (&pool == &private_) {
    if (capture.active) throw InvalidArgument(at(operation) + ": " + refusal);
    try {
      return pool.get(slot, bytes);
    } catch (const OutOfMemory& error) {
      refuse(error.what());
      return nullptr;
    }
  }
  const std::string request = "grow " + words_of(slot) + " bytes=" + std::to_string(bytes);
  const std::string failures = make_buffers({slot}, bytes, request, refusal);
  if (failures.empty()) return pool.current(slot);
  if (is_of_capture(failures)) throw InvalidArgument(at(operation) + ": " + failures);
  refuse(failures);
  return nullptr;
}

// Collective if it has to grow, which it has to on all ranks alike. Null likewise.
std::shared_ptr<Buffer> DeviceEngine::scratch_for(const Plan& plan, size_t bytes,
                                                  const CaptureState& capture, Use use) {
  const Slot slot{plan.role, plan.lane, use};
  if (auto current = scratch_.current(slot); current != nullptr && current->window.bytes >= bytes) {
    return current;
  }
  if (const auto reason = scratch_.refuses(bytes)) {
    refuse(*reason);
    return nullptr;
  }
  const std::lock_guard growth(growth_mutex_);
  const std::string what = "scratch of lane=" + std::to_string(plan.lane);
  const std::string request = "grow " + what + " bytes=" + std::to_string(bytes);
  const std::string refusal =
      capture.active ? refusal_in_capture(bytes, what) + ", or make such a call once" : "";
  std::string failures = agree(*parts_.agreement, rank_, request, refusal).failures;
  if (is_of_capture(failures)) throw InvalidArgument(at(plan.operation()) + ": " + failures);
  failures = make_private(scratch_, {slot}, bytes, request);
  if (failures.empty()) return scratch_.current(slot);
  refuse(failures);
  return nullptr;
}

// Collective. As make_buffers, for memory that each rank makes by itself.
std::string DeviceEngine::make_private(Pool& pool, const std::vector<Slot>& slots, size_t bytes,
                                       const std::string& request) {
  std::vector<std::pair<std::shared_ptr<Buffer>, std::shared_ptr<Buffer>>> made;
  std::string failure;
  try {
    for (const Slot& slot : slots) {
      auto before = pool.current(slot);
      auto now = pool.get(slot, bytes);
      made.emplace_back(std::move(before), std::move(now));
    }
  } catch (const Error& error) {
    failure = error.what();
  }
  std::string failures = agree(*parts_.agreement, rank_, request + " made", failure).failures;
  if (failures.empty()) return "";
  for (auto& [before, now] : std::views::reverse(made)) pool.revert(std::move(now), before);
  pool.limit(bytes - 1, failures);
  return failures;
}

// Collective. All slots on all ranks or none on any; what went wrong, in words.
std::string DeviceEngine::make_buffers(const std::vector<Slot>& slots, size_t bytes,
                                       const std::string& request, const std::string& refusal) {
  // On the way, outgrown memory goes back: it may be what the new one needs.
  const std::vector<uint32_t> condemned = pool_.condemn();
  Answers answers;
  try {
    answers = agree(*parts_.agreement, rank_, request, refusal, joined(condemned));
  } catch (...) {
    pool_.release(condemned, {});
    throw;
  }
  if (!answers.failures.empty()) {
    pool_.release(condemned, {});
    return answers.failures;
  }
  const std::lock_guard nccl(nccl_mutex_);
  pool_.release(condemned, common(answers.details));

  std::vector<std::pair<std::shared_ptr<Buffer>, std::shared_ptr<Buffer>>> made;
  const auto undo = [&](const std::string& reason) {
    for (auto& [before, now] : std::views::reverse(made)) pool_.revert(std::move(now), before);
    pool_.limit(bytes - 1, reason);
    ++resources_version_;
    return reason;
  };
  std::vector<Slot> own;  // of this rank alone
  try {
    for (const Slot& slot : slots) {
      if (&pool_of(slot) == &private_) {
        own.push_back(slot);
        continue;
      }
      auto before = pool_.current(slot);
      auto now = pool_.get(slot, bytes);
      made.emplace_back(std::move(before), std::move(now));
    }
  } catch (const OutOfMemory& error) {  // these two are met by all ranks in the same place
    return undo(error.what());
  } catch (const Unavailable& error) {
    return undo(error.what());
  }
  note_peers();
  const std::string failures = own.empty() ? "" : make_private(private_, own, bytes, request);
  return failures.empty() ? "" : undo(failures);
}

std::string DeviceEngine::reserve(const std::vector<Role>& roles, int lanes, size_t bytes,
                                  bool pin) {
  require_usable("reserve");
  require_no_faults("reserve");
  if (lanes < 1 || lanes > kMaxLanes) {
    throw InvalidArgument(at("reserve") + ": lanes=" + std::to_string(lanes) + " is not in 1.." +
                          std::to_string(kMaxLanes));
  }
  std::string request = "reserve";
  std::vector<Slot> slots;
  for (int number = 0; number < kRoles; ++number) {  // in this order on all ranks, each role once
    const Role role = static_cast<Role>(number);
    if (std::find(roles.begin(), roles.end(), role) == roles.end()) continue;
    request += std::string(slots.empty() ? " " : ",") + name_of(role);
    for (int each = 0; each < lanes; ++each) slots.push_back({role, each, Use::kAcquired});
  }
  if (slots.empty()) throw InvalidArgument(at("reserve") + ": no role is given");
  request +=
      " lanes=" + std::to_string(lanes) + " bytes=" + std::to_string(bytes) + (pin ? " graph" : "");
  if (!resources_.no_windows.empty()) return resources_.no_windows;
  std::deque<LaneCall> taken;
  for (const Slot& slot : slots) {
    taken.emplace_back(lane(slot.role, slot.lane, "reserve"), by("reserve"));
  }
  return guarded([&] {
    const std::lock_guard growth(growth_mutex_);
    // A rank that knows that there can be none says so to the others: they may have asked for less.
    const std::string refusal = pool_.refuses(bytes).value_or("");
    std::string failures = make_buffers(slots, std::max(bytes, size_t{1}), request, refusal);
    if (failures.empty() && pin) {
      for (const Slot& slot : slots) pool_of(slot).current(slot)->pinned = true;
    }
    return failures;
  });
}

// --- giving memory back --------------------------------------------------------------------------

void DeviceEngine::retain(Buffer& buffer) {
  require_usable("retain");
  require_no_faults("retain");
  buffer.pinned = true;
}

void DeviceEngine::trim() {
  require_usable("trim");
  require_no_faults("trim");
  guarded([&] { give_back("trim", false); });
}

void DeviceEngine::release_graphs() {
  require_usable("release_graphs");
  require_no_faults("release_graphs");
  guarded([&] { give_back("release_graphs", true); });
}

void DeviceEngine::give_back(const std::string& request, bool unpin) {
  const std::lock_guard growth(growth_mutex_);
  // Only when all ranks are here is it certain that all mean the same call.
  if (unpin) {
    agree(*parts_.agreement, rank_, request + " begins", "");
    for (Pool* const pool : {&pool_, &private_, &scratch_}) pool->unpin_all();
  }
  const std::vector<uint32_t> condemned = pool_.condemn();
  std::vector<uint32_t> agreed;
  try {
    agreed = common(agree(*parts_.agreement, rank_, request, "", joined(condemned)).details);
  } catch (...) {
    pool_.release(condemned, {});
    throw;
  }
  const std::lock_guard nccl(nccl_mutex_);
  pool_.release(condemned, agreed);
  private_.trim();
  scratch_.trim();
}

// Work in graphs is not seen: their owner has ended it. Gives up on work that a failed group leaves
// behind and that does not end.
void DeviceEngine::wait_until_unused() {
  const auto busy = [&] {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& each) { return !each.done(); });
  };
  const RelaxedCapture relaxed(*parts_.device);
  int64_t give_up_ns = 0;  // 0: not yet
  while (busy()) {
    if (poisoned_.load(std::memory_order_acquire)) {
      if (give_up_ns == 0) give_up_ns = now_ns() + kPatienceNs;
      if (now_ns() > give_up_ns) return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void DeviceEngine::suspend() {
  require_usable("suspend");
  require_no_faults("suspend");
  std::deque<LaneCall> taken;
  for (DeviceLane& each : lanes_) taken.emplace_back(each, by("suspend"));
  guarded([&] {
    wait_until_unused();
    PoolStats before = pool_stats();
    before += scratch_.stats();
    std::string holder;
    if (before.pinned_bytes > 0) {
      holder = std::to_string(before.pinned_bytes) +
               " bytes are pinned for graphs; call release_graphs() first";
    } else if (before.viewed_bytes > 0) {
      holder = std::to_string(before.viewed_bytes) + " bytes are held by tensors over windows";
    }
    const std::lock_guard growth(growth_mutex_);
    const Answers answers = agree(*parts_.agreement, rank_, "suspend", holder);
    if (!answers.failures.empty()) throw InvalidArgument(at("suspend") + ": " + answers.failures);
    asleep_ = pool_.sizes();
    for (Pool* const pool : {&pool_, &private_, &scratch_}) pool->retire_all();
  });
  guarded([&] { give_back("suspend gives back", false); });
  suspended_ = true;
}

void DeviceEngine::resume() {
  if (!suspended_.exchange(false)) return;
  require_usable("resume");
  guarded([&] {
    const std::lock_guard growth(growth_mutex_);
    for (const auto& [slot, bytes] : asleep_) {
      const std::string request = "resume " + words_of(slot) + " bytes=" + std::to_string(bytes);
      const std::string failures = make_buffers({slot}, bytes, request, "");
      if (!failures.empty()) refuse(failures);  // acquire will say so
    }
    asleep_.clear();
  });
}

}  // namespace symmoe
