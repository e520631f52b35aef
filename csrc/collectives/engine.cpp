#include "collectives/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/kernels.h"
#include "windows/fork_guard.h"

namespace symmoe {
namespace {

std::string lane_name(const char* what, int lane) {
  return std::string(what) + ", lane " + std::to_string(lane);
}

}  // namespace

Engine::Engine(int rank, std::vector<ControlBlock*> blocks, WindowSource* source,
               Liveness* liveness, const EngineConfig& config)
    : rank_(rank),
      blocks_(std::move(blocks)),
      source_(source),
      liveness_(liveness),
      config_(config),
      generation_(fork_generation()),
      watch_(rank, blocks_, liveness, config.check ? config.stall_ns : 0, config.interrupt),
      pool_(source, config.pool, [this](const Buffer& buffer) { return settled(buffer); }),
      administration_([&] {
        std::vector<FlagLine*> lines;
        for (ControlBlock* block : blocks_) lines.push_back(&block->administration);
        return Channel("administration", rank, std::move(lines), config.wait, &watch_);
      }()) {
  kernels::isa_name();  // a choice that this machine cannot serve fails here, not inside a call
  if (world() > kMaxRanks) {
    throw InvalidArgument("windows serve at most " + std::to_string(kMaxRanks) + " ranks, not " +
                          std::to_string(world()));
  }
  const auto channel = [&](std::string name, auto line_of) {
    std::vector<FlagLine*> lines;
    for (ControlBlock* block : blocks_) lines.push_back(line_of(block));
    return Channel(std::move(name), rank, std::move(lines), config.wait, &watch_);
  };
  for (int role = 0; role < kRoles; ++role) {
    for (int lane = 0; lane < kMaxLanes; ++lane) {
      calls_.emplace_back(channel(lane_name(name_of(static_cast<Role>(role)), lane),
                                  [&](ControlBlock* block) { return &block->calls[role][lane]; }));
    }
  }
  for (int lane = 0; lane < kMaxLanes; ++lane) {
    checks_.emplace_back(channel(lane_name("check", lane),
                                 [&](ControlBlock* block) { return &block->checks[lane]; }));
  }
}

Endpoint& Engine::endpoint(Role role, int lane) {
  if (lane < 0 || lane >= kMaxLanes) {
    throw InvalidArgument("lane " + std::to_string(lane) + " is not in 0.." +
                          std::to_string(kMaxLanes - 1));
  }
  return calls_[static_cast<size_t>(role) * kMaxLanes + static_cast<size_t>(lane)];
}

// --- acquire -------------------------------------------------------------------------------------

std::shared_ptr<Buffer> Engine::acquire(Role role, int lane, size_t bytes) {
  require_usable("acquire");
  endpoint(role, lane);  // checks the lane before anything else happens
  if (const auto reason = pool_.refuses(bytes)) {
    refuse(*reason);
    return nullptr;
  }
  const Slot slot{role, lane, Use::kAcquired};
  return guarded([&]() -> std::shared_ptr<Buffer> {
    const std::shared_ptr<Buffer> before = pool_.current(slot);
    std::shared_ptr<Buffer> buffer;
    try {
      buffer = buffer_for(slot, std::max(bytes, size_t{1}), "acquire");
    } catch (const OutOfMemory& error) {
      refuse(error.what());
      return nullptr;
    }
    if (buffer != before) source_->refresh();  // peers have probably grown as well
    rearm(*buffer);
    return buffer;
  });
}

bool Engine::rearm(Buffer& buffer) {
  require_usable("acquire");
  if (buffer.retired) return false;
  if (buffer.armed) return true;
  Endpoint& here = endpoint(buffer.slot.role, buffer.slot.lane);
  const Exchange taken(here, "acquire");
  guarded([&] { here.channel.guard(buffer.last_epoch, "acquire"); });
  buffer.armed = true;
  return true;
}

void Engine::refuse(const std::string& reason) {
  const std::lock_guard lock(refusal_mutex_);
  refusal_ = reason;
}

std::string Engine::refusal() const {
  const std::lock_guard lock(refusal_mutex_);
  return refusal_;
}

// --- before a call -------------------------------------------------------------------------------

void Engine::require_usable(const char* operation) const {
  if (closed_.load(std::memory_order_relaxed)) {
    throw Closed(std::string(operation) + ": the group is closed");
  }
  if (fork_generation() != generation_) {
    throw Closed(std::string(operation) +
                 ": this process is a fork of the one that made the group; make a new group here");
  }
  if (poisoned_.load(std::memory_order_acquire)) {
    throw Poisoned(std::string(operation) + ", rank " + std::to_string(rank_) +
                   ": an earlier call failed: " + blocks_[static_cast<size_t>(rank_)]->poison.text);
  }
}

void Engine::require_output_outside(const Plan& plan, const void* output) const {
  if (plan.output_bytes() == 0) return;
  if (output == nullptr) {
    throw InvalidArgument(std::string(plan.operation()) + ": out is null (" + plan.text + ")");
  }
  if (overlaps(output, plan.output_bytes())) {
    throw InvalidArgument(std::string(plan.operation()) +
                          ": out overlaps a buffer of the pool; it must be the caller's memory (" +
                          plan.text + ")");
  }
}

Posting Engine::posting_from(const Plan& plan, Buffer& buffer, size_t offset) const {
  const auto refuse_call = [&](const std::string& what) {
    throw InvalidArgument(std::string(plan.operation()) + ": " + what + " (" + plan.text + ")");
  };
  if (buffer.slot.role != plan.role || buffer.slot.lane != plan.lane) {
    refuse_call(std::string("the input was acquired for ") + name_of(buffer.slot.role) + ", lane " +
                std::to_string(buffer.slot.lane) + ", and is used for " + name_of(plan.role) +
                ", lane " + std::to_string(plan.lane));
  }
  if (!buffer.armed) {
    refuse_call("the buffer was reduced already: acquire it again before writing it");
  }
  const size_t bytes = plan.input_bytes();
  if (offset > buffer.window.bytes || bytes > buffer.window.bytes - offset) {
    refuse_call(std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
                " exceed the buffer's " + std::to_string(buffer.window.bytes));
  }
  return Posting{buffer.window.ordinal, offset, plan.signature, plan.text};
}

// A new window is announced to the peers, one of which may be gone; the error is to name the call.
std::shared_ptr<Buffer> Engine::buffer_for(const Slot& slot, size_t bytes, const char* operation) {
  return endpoint(slot.role, slot.lane).channel.naming(operation, [&] {
    return pool_.get(slot, bytes);
  });
}

std::shared_ptr<Buffer> Engine::stage_for(const Plan& plan, size_t bytes) {
  if (const auto reason = pool_.refuses(bytes)) {
    refuse(*reason);
    return nullptr;
  }
  try {
    return buffer_for(Slot{plan.role, plan.lane, Use::kStage}, bytes, plan.operation());
  } catch (const OutOfMemory& error) {
    refuse(error.what());
    return nullptr;
  }
}

// --- collective calls that move no rows ----------------------------------------------------------

void Engine::agree(Role role, int lane, const std::string& text) {
  require_usable("fallback");
  Endpoint& here = endpoint(role, lane);
  Exchange exchange(here, "fallback");
  guarded([&] {
    exchange.open();
    exchange.meet(Posting{Posting::kNothing, 0, signature_of(text), text});
    exchange.finish();
  });
  ++counts_.fallback;
}

void Engine::check_call(int lane, const std::string& text) {
  require_usable("check");
  endpoint(Role::kCombine, lane);
  Exchange exchange(checks_[static_cast<size_t>(lane)], "check");
  guarded([&] {
    exchange.open();
    exchange.meet(Posting{Posting::kNothing, 0, signature_of(text), text});
    exchange.finish();
  });
}

std::string Engine::administrate(const char* operation, const std::string& request,
                                 const std::string& failure) {
  Exchange exchange(administration_, operation);
  exchange.open();
  const std::string text = failure.empty() ? request : request + ": " + failure;
  const uint32_t status = failure.empty() ? Posting::kNothing : Posting::kNoWindow;
  const bool all_succeeded = exchange.meet(Posting{status, 0, signature_of(request), text});
  std::string failures;
  for (int rank = 0; rank < world() && !all_succeeded; ++rank) {
    const FlagLine& line = administration_.channel.line(rank);
    if (line.ordinal != Posting::kNoWindow) continue;
    failures += (failures.empty() ? "rank " : "; rank ") + std::to_string(rank) + ": " + line.text;
  }
  exchange.finish();
  return failures;
}

// --- the group's life ----------------------------------------------------------------------------

bool Engine::settled(const Buffer& buffer) const {
  const Slot& slot = buffer.slot;
  const auto line_of = [&](int rank) -> const FlagLine& {
    return blocks_[static_cast<size_t>(rank)]->calls[static_cast<size_t>(slot.role)][slot.lane];
  };
  // Every call but the last one was guarded before the next (a call that is about to publish has
  // noted its epoch already). So old numbers, which may have wrapped round, are not compared.
  // Acquire: the thread that guarded them may be another lane's.
  const uint32_t last = buffer.last_epoch.load(std::memory_order_relaxed);
  const uint32_t published = line_of(rank_).epoch.load(std::memory_order_acquire);
  if (last != published && last != published + 1) return true;
  for (int rank = 0; rank < world(); ++rank) {
    if (rank == rank_) continue;
    if (!reached(line_of(rank).done.load(std::memory_order_acquire), last)) return false;
  }
  return true;
}

void Engine::check() {
  require_usable("check");
  for (int rank = 0; rank < world(); ++rank) {
    if (rank != rank_) guarded([&] { watch_.look(rank, 0, "check"); });
  }
}

void Engine::poison(PoisonNote::Kind kind, const std::string& reason) {
  const std::lock_guard lock(poison_mutex_);
  if (poisoned_.load(std::memory_order_relaxed)) return;  // the first failure is the cause
  PoisonNote& note = blocks_[static_cast<size_t>(rank_)]->poison;
  const size_t length = std::min(reason.size(), PoisonNote::kTextBytes - 1);
  std::memcpy(note.text, reason.data(), length);
  note.text[length] = '\0';
  note.kind.store(kind, std::memory_order_release);
  poisoned_.store(true, std::memory_order_release);
}

void Engine::close() {
  const std::lock_guard lock(close_mutex_);
  if (closed_.load(std::memory_order_relaxed)) return;
  // A call that runs now would lose its memory under its feet. Endpoints stay taken: none begins.
  std::vector<Endpoint*> taken;
  const auto take = [&](Endpoint& each) {
    if (each.busy.test_and_set(std::memory_order_acquire)) {
      for (Endpoint* other : taken) other->busy.clear(std::memory_order_release);
      throw InvalidArgument("close: a call is running on " + each.channel.name());
    }
    taken.push_back(&each);
  };
  for (Endpoint& each : calls_) take(each);
  for (Endpoint& each : checks_) take(each);
  take(administration_);
  closed_.store(true, std::memory_order_relaxed);
}

// --- queries -------------------------------------------------------------------------------------

std::shared_ptr<Buffer> Engine::find(const void* address, size_t* offset) const {
  return pool_.find(static_cast<const std::byte*>(address), offset);
}

bool Engine::overlaps(const void* address, size_t bytes) const {
  return pool_.overlaps(static_cast<const std::byte*>(address), bytes);
}

}  // namespace symmoe
