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

std::string Engine::at(const char* operation) const {
  return std::string(operation) + ", rank " + std::to_string(rank_);
}

Endpoint& Engine::endpoint(Role role, int lane, const char* operation) {
  if (lane < 0 || lane >= kMaxLanes) {
    throw InvalidArgument(at(operation) + ": lane " + std::to_string(lane) + " is not in 0.." +
                          std::to_string(kMaxLanes - 1));
  }
  return calls_[static_cast<size_t>(role) * kMaxLanes + static_cast<size_t>(lane)];
}

// --- acquire -------------------------------------------------------------------------------------

std::shared_ptr<Buffer> Engine::acquire(Role role, int lane, size_t bytes) {
  require_usable("acquire");
  Endpoint& here = endpoint(role, lane, "acquire");
  const Exchange taken(here, "acquire");  // one thread at a time replaces the buffer
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
    arm(*buffer, here);
    return buffer;
  });
}

bool Engine::rearm(Buffer& buffer) {
  require_usable("acquire");
  if (buffer.retired.load(std::memory_order_relaxed)) return false;
  if (buffer.armed.load(std::memory_order_relaxed)) return true;
  Endpoint& here = endpoint(buffer.slot.role, buffer.slot.lane, "acquire");
  const Exchange taken(here, "acquire");
  guarded([&] { arm(buffer, here); });
  return true;
}

// The endpoint is taken.
void Engine::arm(Buffer& buffer, Endpoint& here) {
  if (buffer.armed.load(std::memory_order_relaxed)) return;
  here.channel.guard(buffer.last_epoch, "acquire");
  buffer.armed.store(true, std::memory_order_relaxed);
}

void Engine::refuse(const std::string& reason) {
  const std::lock_guard lock(refusal_mutex_);
  refusal_ = reason;
}

std::string Engine::refusal() const {
  require_own_process("refusal");
  const std::lock_guard lock(refusal_mutex_);
  return refusal_;
}

// --- before a call -------------------------------------------------------------------------------

// Before any lock is taken: another thread may have held it when this process was forked.
void Engine::require_own_process(const char* operation) const {
  if (fork_generation() != generation_) {
    throw Closed(at(operation) +
                 ": this process is a fork of the one that made the group; make a new group here");
  }
}

void Engine::require_usable(const char* operation) const {
  if (closed_.load(std::memory_order_relaxed)) {
    throw Closed(at(operation) + ": the group is closed");
  }
  require_own_process(operation);
  if (poisoned_.load(std::memory_order_acquire)) {
    throw Poisoned(at(operation) +
                   ": an earlier call failed: " + blocks_[static_cast<size_t>(rank_)]->poison.text);
  }
}

// A new window is announced to the peers, one of which may be gone; the error is to name the call.
std::shared_ptr<Buffer> Engine::buffer_for(const Slot& slot, size_t bytes, const char* operation) {
  return endpoint(slot.role, slot.lane, operation).channel.naming(operation, [&] {
    return pool_.get(slot, bytes);
  });
}

// --- calls that move no rows ---------------------------------------------------------------------

void Engine::agree(Role role, int lane, const std::string& text) {
  require_usable("fallback");
  Exchange exchange(endpoint(role, lane, "fallback"), "fallback");
  guarded([&] {
    exchange.open();
    exchange.meet(Posting{Posting::kNothing, 0, signature_of(text), text});
    exchange.finish();
  });
}

void Engine::check_call(int lane, const std::string& text) {
  require_usable("check");
  endpoint(Role::kCombine, lane, "check");  // refuses a lane that does not exist
  Exchange exchange(checks_[static_cast<size_t>(lane)], "check");
  guarded([&] {
    exchange.open();
    exchange.meet(Posting{Posting::kNothing, 0, signature_of(text), text});
    exchange.finish();
  });
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
  if (fork_generation() != generation_) return;  // the note is the parent's
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
  if (fork_generation() != generation_) return;  // a fork has nothing to close
  const std::lock_guard lock(close_mutex_);
  if (closed_.load(std::memory_order_relaxed)) return;
  // A call that runs now would lose its memory under its feet. Endpoints stay taken: none begins.
  std::vector<Endpoint*> taken;
  const auto take = [&](Endpoint& each) {
    if (each.busy.test_and_set(std::memory_order_acquire)) {
      for (Endpoint* other : taken) other->busy.clear(std::memory_order_release);
      throw InvalidArgument(at("close") + ": a call is running on " + each.channel.name());
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
  require_own_process("find");
  return pool_.find(static_cast<const std::byte*>(address), offset);
}

bool Engine::overlaps(const void* address, size_t bytes) const {
  require_own_process("overlaps");
  return pool_.overlaps(static_cast<const std::byte*>(address), bytes);
}

PoolStats Engine::pool_stats() const {
  require_own_process("stats");
  return pool_.stats();
}

}  // namespace symmoe
