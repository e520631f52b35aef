// What moves rows: checks of the caller's memory, the choice of a path, staging, order of use.
#include <algorithm>
#include <string>
#include <utility>

#include "collectives/device/call_source.h"
#include "collectives/device/device_engine.h"

namespace symmoe {

Resources DeviceEngine::resources_snapshot() const {
  const std::lock_guard lock(text_mutex_);
  return resources_;
}

// A call that no window can hold goes another way, on all ranks alike.
Resources DeviceEngine::resources_for(const Problem& problem) const {
  Resources resources = resources_snapshot();
  if (resources.no_windows.empty() && problem.total_bytes > 0) {
    resources.no_windows = pool_.refuses(problem.total_bytes).value_or("");
  }
  return resources;
}

const DevicePath* DeviceEngine::path_for(const DevicePlan& plan, const CallForm& form) const {
  DevicePlan::Choice& choice = plan.choices[index_of(form)];
  const uint64_t stamp = uint64_t{resources_version_.load(std::memory_order_acquire)} << 32 |
                         static_cast<uint32_t>(form.slots);
  if (choice.stamp.load(std::memory_order_acquire) == stamp) return choice.path.load();
  const Problem problem = problem_of(plan.plan, form);
  const DevicePath* const path = selector_.choose(problem, resources_for(problem));
  choice.path.store(path);
  choice.stamp.store(stamp, std::memory_order_release);
  return path;
}

// Before anything is queued: a guess would give wrong rows.
void DeviceEngine::require_path(const DevicePlan& plan, const CallForm& form,
                                const DevicePath* path) const {
  if (path != nullptr || !plan.plan.device_sizes) return;
  const Problem problem = problem_of(plan.plan, form);
  const Resources resources = resources_for(problem);
  std::string reason = path_of(PathKind::kPull).refusal(problem, resources);
  if (reason.empty()) reason = "they are left out by the settings (Config.paths, SYMMOE_PATHS)";
  throw Unavailable(at(plan.plan.operation()) +
                    ": sizes on the device need symmoe's own kernels, and there are none here: " +
                    reason + " (" + plan.plan.text + "); give the sizes on the host");
}

// The window that the output lies in; null where it is the caller's memory.
std::shared_ptr<Buffer> DeviceEngine::require_fit(const Plan& plan, const DeviceCall& call) const {
  const auto refuse_call = [&](const std::string& what) {
    throw InvalidArgument(at(plan.operation()) + ": " + what + " (" + plan.text + ")");
  };
  if (plan.rank != rank_ || plan.counts.size() != static_cast<size_t>(world_)) {
    refuse_call("the plan is one of rank " + std::to_string(plan.rank) + " in a world of " +
                std::to_string(plan.counts.size()) + ", not of " + std::to_string(world_));
  }
  if (plan.device_sizes != (call.sizes != nullptr)) {
    refuse_call(plan.device_sizes ? "sizes have no memory" : "there are sizes on the device");
  }
  const size_t sum_bytes = plan.device_sizes
                               ? plan.bytes_of(std::min(call.output_rows, plan.own_count()))
                               : plan.output_bytes();
  const size_t element = output_size(plan, call);
  const size_t bytes = sum_bytes / size_of(plan.dtype) * element;
  if (call.epilogue != nullptr) require_epilogue(plan, call);
  if (bytes == 0) return nullptr;
  if (call.output == nullptr) refuse_call("out is null");
  auto window = output_window(plan.operation(), plan.lane, call.output, bytes, plan.text);
  require_aligned(by(plan.operation()), "out", call.output, element);
  return window;
}

void DeviceEngine::require_source(const Plan& plan, const Buffer& buffer, size_t offset) const {
  const auto refuse_call = [&](const std::string& what) {
    throw InvalidArgument(at(plan.operation()) + ": " + what + " (" + plan.text + ")");
  };
  const Slot& slot = buffer.slot;
  if (slot.role != plan.role || slot.lane != plan.lane || slot.use != Use::kAcquired) {
    refuse_call(std::string("the input was acquired for ") + name_of(slot.role) + ", lane " +
                std::to_string(slot.lane) + ", and is used for " + name_of(plan.role) + ", lane " +
                std::to_string(plan.lane));
  }
  if (!buffer.armed.load(std::memory_order_relaxed)) {
    refuse_call("the buffer was reduced already: acquire it again before writing it");
  }
  require_aligned(by(plan.operation()), "input", buffer.window.base + offset, size_of(plan.dtype));
  const size_t bytes = plan.input_bytes();
  if (offset > buffer.window.bytes || bytes > buffer.window.bytes - offset) {
    refuse_call(std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
                " exceed the buffer's " + std::to_string(buffer.window.bytes));
  }
}

bool DeviceEngine::run(const DevicePlan& plan, Buffer& buffer, size_t offset,
                       const DeviceCall& call) {
  require_usable(plan.plan.operation());
  require_no_faults(plan.plan.operation(), buffer.window.base + offset);
  auto window = require_fit(plan.plan, call);
  const LaneCall taken(lane(plan.plan.role, plan.plan.lane, plan.plan.operation()),
                       by(plan.plan.operation()));
  const Output output(*this, plan.plan, std::move(window));
  require_source(plan.plan, buffer, offset);
  return queue(plan, {buffer.window.base + offset, buffer.shared_from_this(), offset}, call,
               output);
}

bool DeviceEngine::run(const DevicePlan& plan, const void* input, const DeviceCall& call) {
  require_usable(plan.plan.operation());
  require_no_faults(plan.plan.operation(), input);
  auto window = require_fit(plan.plan, call);
  const LaneCall taken(lane(plan.plan.role, plan.plan.lane, plan.plan.operation()),
                       by(plan.plan.operation()));
  const Output output(*this, plan.plan, std::move(window));
  if (input == nullptr && plan.plan.input_bytes() != 0) {
    throw InvalidArgument(at(plan.plan.operation()) + ": input has no memory (" + plan.plan.text +
                          ")");
  }
  require_aligned(by(plan.plan.operation()), "input", input, size_of(plan.plan.dtype));
  return queue(plan, {static_cast<const std::byte*>(input), nullptr, 0}, call, output);
}

// Collective. `window`: where this rank's rows will be read, null if that does not matter.
void DeviceEngine::compare(const Plan& plan, const CallForm& form, const Buffer* window,
                           size_t offset) {
  std::string request = "call " + plan.text + " lane=" + std::to_string(plan.lane);
  if (form.deterministic) request += " deterministic";
  if (form.routed) request += " slots=" + std::to_string(form.slots);
  // NCCL reads what lies at the same place of the same window on every rank.
  if (window != nullptr) {
    request +=
        " from window " + std::to_string(window->window.ordinal) + "+" + std::to_string(offset);
  }
  agree(*parts_.agreement, rank_, request, "");
}

// The lane is taken.
bool DeviceEngine::queue(const DevicePlan& plan, const Source& source, const DeviceCall& call,
                         const Output& output) {
  const Plan& rows = plan.plan;
  const CallForm form = form_of(call, source);
  require_path(plan, form, path_for(plan, form));
  return guarded([&] {
    const Device& device = *parts_.device;
    const CaptureState capture = device.capture_state(call.stream);

    // First all that is settled with the other ranks, so that they meet in the same order.
    const DevicePath* path = path_for(plan, form);
    const bool rows_missing = path != nullptr && is_missing_rows(*path, form);
    std::shared_ptr<Buffer> staged;
    if (path != nullptr && must_stage(*path, source, rows_missing)) {
      staged = staging_for(rows, *path, rows_missing, capture);
      if (staged == nullptr) {
        if (rows.device_sizes || rows_missing) return false;
        path = path_for(plan, form);  // less is possible than before
      }
    }
    std::shared_ptr<Buffer> scratch;
    const size_t scratch_bytes = path == nullptr ? 0 : path->scratch_bytes(problem_of(rows, form));
    if (scratch_bytes > 0) {
      scratch = scratch_for(rows, scratch_bytes, capture);
      if (scratch == nullptr) path = nullptr;
    }
    if (config_.check && world_ > 1) {
      const Buffer* const window =
          source.buffer != nullptr && staged == nullptr ? source.buffer.get() : staged.get();
      const bool matters = path != nullptr && path->kind() == PathKind::kDirect;
      compare(rows, form, matters ? window : nullptr, staged == nullptr ? source.offset : 0);
    }
    if (path == nullptr) return false;

    DeviceLane& here = lane(rows.role, rows.lane, rows.operation());
    here.order(call.stream, capture, device, by(rows.operation()));
    output.wait_in(call.stream, capture);
    for (Buffer* const used : {source.buffer.get(), staged.get(), scratch.get()}) {
      if (used != nullptr && capture.active) used->pinned = true;
    }
    if (source.buffer != nullptr) source.buffer->armed.store(false, std::memory_order_relaxed);
    output.use_up();
    try {
      if (staged != nullptr) stage(rows, source, staged->window.base, rows_missing, call);
      send(rows, *path, source, staged.get(), call,
           scratch == nullptr ? nullptr : scratch->window.base);
    } catch (...) {
      here.note(call.stream, capture);  // a part may be on its way, and uses the buffers
      output.used_in(call.stream, capture);
      throw;
    }
    here.note(call.stream, capture);
    output.used_in(call.stream, capture);
    counts_.paths[static_cast<size_t>(path->kind())].fetch_add(1, std::memory_order_relaxed);
    if (staged != nullptr) counts_.staged.fetch_add(1, std::memory_order_relaxed);
    return true;
  });
}

void DeviceEngine::send(const Plan& rows, const DevicePath& path, const Source& source,
                        const Buffer* staged, const DeviceCall& call, std::byte* scratch) {
  const bool finishes = path.takes_epilogue();
  Transfer transfer{
      .plan = rows,
      .send = staged == nullptr ? source.send : staged->window.base,
      .receive = static_cast<std::byte*>(finishes ? call.output : call.sums_or_output()),
      .scratch = scratch,
      .stream = call.stream,
      .device = *parts_.device,
      .resources = resources_,
      .epilogue = finishes ? call.epilogue : nullptr};
  if ((bit_of(path.kind()) & kOwnKernels) == 0) {
    const std::lock_guard nccl(nccl_mutex_);
    path.run(transfer);
  } else {
    pull(rows, path, source, staged, call, transfer);
  }
  if (call.epilogue != nullptr && !finishes) finish(rows, call);
}

// By a kernel of our own.
void DeviceEngine::pull(const Plan& rows, const DevicePath& path, const Source& source,
                        const Buffer* staged, const DeviceCall& call, Transfer transfer) {
  const Buffer& window = staged == nullptr ? *source.buffer : *staged;
  PeerRows where{.ordinal = window.window.ordinal,
                 .offset = staged == nullptr ? source.offset : 0,
                 .sizes = call.sizes,
                 .output_rows = call.output_rows};
  if (call.routing != nullptr && takes_routing(path.kind())) {
    where.route = source.route.mask != nullptr ? source.route : mask_of(rows, call);
  }
  PeerCall peers = kernels_.call(rows, where, static_cast<uint32_t>(path.kind()));
  peers.sum = source.sum;
  transfer.peers = &peers;
  path.run(transfer);
}

}  // namespace symmoe
