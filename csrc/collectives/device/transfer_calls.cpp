// What moves rows: checks of the caller's memory, the choice of a path, staging, order of use.
#include <string>
#include <utility>

#include "collectives/device/device_engine.h"

namespace symmoe {

// Where a call's rows are.
struct DeviceEngine::Source {
  const std::byte* send = nullptr;
  std::shared_ptr<Buffer> buffer;  // null: the caller's own memory
  size_t offset = 0;
};

// A call that no window can hold goes another way, on all ranks alike.
Resources DeviceEngine::resources_for(const Problem& problem) const {
  Resources resources = resources_;
  if (resources.no_windows.empty() && problem.total_bytes > 0) {
    resources.no_windows = pool_.refuses(problem.total_bytes).value_or("");
  }
  return resources;
}

const DevicePath* DeviceEngine::path_for(const DevicePlan& plan, bool deterministic) const {
  DevicePlan::Choice& choice = plan.choices[deterministic ? 1 : 0];
  const uint32_t version = resources_version_.load(std::memory_order_acquire);
  if (choice.version.load(std::memory_order_acquire) == version) return choice.path.load();
  const Problem& problem = plan.problems[deterministic ? 1 : 0];
  const DevicePath* const path = selector_.choose(problem, resources_for(problem));
  choice.path.store(path);
  choice.version.store(version, std::memory_order_release);
  return path;
}

void DeviceEngine::require_fit(const Plan& plan, const void* output) const {
  const auto refuse_call = [&](const std::string& what) {
    throw InvalidArgument(at(plan.operation()) + ": " + what + " (" + plan.text + ")");
  };
  if (plan.rank != rank_ || plan.counts.size() != static_cast<size_t>(world_)) {
    refuse_call("the plan is one of rank " + std::to_string(plan.rank) + " in a world of " +
                std::to_string(plan.counts.size()) + ", not of " + std::to_string(world_));
  }
  if (plan.output_bytes() == 0) return;
  if (output == nullptr) refuse_call("out is null");
  if (overlaps(output, plan.output_bytes())) {
    refuse_call("out overlaps a buffer of the pool; it must be the caller's memory");
  }
  require_aligned(by(plan.operation()), "out", output, size_of(plan.dtype));
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

bool DeviceEngine::run(const DevicePlan& plan, Buffer& buffer, size_t offset, void* output,
                       StreamHandle stream, bool deterministic) {
  require_usable(plan.plan.operation());
  require_no_faults(plan.plan.operation(), buffer.window.base + offset);
  require_fit(plan.plan, output);
  const LaneCall call(lane(plan.plan.role, plan.plan.lane, plan.plan.operation()),
                      by(plan.plan.operation()));
  require_source(plan.plan, buffer, offset);
  return queue(plan, {buffer.window.base + offset, buffer.shared_from_this(), offset}, output,
               stream, deterministic);
}

bool DeviceEngine::run(const DevicePlan& plan, const void* input, void* output, StreamHandle stream,
                       bool deterministic) {
  require_usable(plan.plan.operation());
  require_no_faults(plan.plan.operation(), input);
  require_fit(plan.plan, output);
  const LaneCall call(lane(plan.plan.role, plan.plan.lane, plan.plan.operation()),
                      by(plan.plan.operation()));
  if (input == nullptr && plan.plan.input_bytes() != 0) {
    throw InvalidArgument(at(plan.plan.operation()) + ": input has no memory (" + plan.plan.text +
                          ")");
  }
  require_aligned(by(plan.plan.operation()), "input", input, size_of(plan.plan.dtype));
  return queue(plan, {static_cast<const std::byte*>(input), nullptr, 0}, output, stream,
               deterministic);
}

// Collective. `window`: where this rank's rows will be read, null if that does not matter.
void DeviceEngine::compare(const Plan& plan, const Buffer* window, size_t offset,
                           bool deterministic) {
  std::string request = "call " + plan.text + " lane=" + std::to_string(plan.lane);
  if (deterministic) request += " deterministic";
  // NCCL reads what lies at the same place of the same window on every rank.
  if (window != nullptr) {
    request +=
        " from window " + std::to_string(window->window.ordinal) + "+" + std::to_string(offset);
  }
  agree(*parts_.agreement, rank_, request, "");
}

// The lane is taken.
bool DeviceEngine::queue(const DevicePlan& plan, const Source& source, void* output,
                         StreamHandle stream, bool deterministic) {
  return guarded([&] {
    const Device& device = *parts_.device;
    const CaptureState capture = device.capture_state(stream);
    DeviceLane& here = lane(plan.plan.role, plan.plan.lane, plan.plan.operation());

    // First all that is settled with the other ranks, so that they meet in the same order.
    const DevicePath* path = path_for(plan, deterministic);
    std::shared_ptr<Buffer> staged;
    if (path != nullptr && path->sends_from_window() && source.buffer == nullptr) {
      staged = staging_for(plan.plan, capture);
      if (staged == nullptr) path = path_for(plan, deterministic);  // less is possible than before
    }
    std::shared_ptr<Buffer> scratch;
    const size_t scratch_bytes =
        path == nullptr ? 0 : path->scratch_bytes(plan.problems[deterministic ? 1 : 0]);
    if (scratch_bytes > 0) {
      scratch = scratch_for(plan.plan, scratch_bytes, capture);
      if (scratch == nullptr) path = nullptr;
    }
    if (config_.check && world_ > 1) {
      const Buffer* const window = source.buffer != nullptr ? source.buffer.get() : staged.get();
      const bool matters = path != nullptr && path->sends_from_window();
      compare(plan.plan, matters ? window : nullptr, source.offset, deterministic);
    }
    if (path == nullptr) return false;

    here.order(stream, capture, device, by(plan.plan.operation()));
    Transfer transfer{.plan = plan.plan,
                      .send = source.send,
                      .receive = static_cast<std::byte*>(output),
                      .scratch = scratch == nullptr ? nullptr : scratch->window.base,
                      .stream = stream,
                      .device = device,
                      .resources = resources_};
    for (Buffer* const used : {source.buffer.get(), staged.get(), scratch.get()}) {
      if (used != nullptr && capture.active) used->pinned = true;
    }
    if (source.buffer != nullptr) source.buffer->armed.store(false, std::memory_order_relaxed);
    try {
      if (staged != nullptr) {
        transfer.send = staged->window.base;
        device.copy_to_window({.source = source.send,
                               .destination = staged->window.base,
                               .bytes = static_cast<int64_t>(plan.plan.input_bytes())},
                              stream);
      }
      const std::lock_guard nccl(nccl_mutex_);
      path->run(transfer);
    } catch (...) {
      here.note(stream, capture);  // a part may be on its way, and uses the buffers
      throw;
    }
    here.note(stream, capture);
    counts_.paths[static_cast<size_t>(path->kind())].fetch_add(1, std::memory_order_relaxed);
    if (staged != nullptr) counts_.staged.fetch_add(1, std::memory_order_relaxed);
    return true;
  });
}

// In the window that a rank with its rows in the pool sends from, since NCCL wants all ranks to
// send from the same. But not if this rank's rows for another call may be in there.
std::shared_ptr<Buffer> DeviceEngine::staging_for(const Plan& plan, const CaptureState& capture) {
  Slot slot{plan.role, plan.lane, Use::kAcquired};
  const auto current = pool_.current(slot);
  if (current != nullptr && current->armed.load(std::memory_order_relaxed)) slot.use = Use::kStage;
  return buffer_for(slot, plan.input_bytes(), capture, plan.operation());
}

}  // namespace symmoe
