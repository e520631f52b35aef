// What all calls that move rows have in common: checks of the caller's memory, staging, and the one
// barrier between writing and reading.
#include <string>

#include "collectives/engine.h"
#include "collectives/operation.h"

namespace symmoe {

void Engine::require_fit(const Operation& operation, const Plan& plan) const {
  const auto refuse_plan = [&](const std::string& what) {
    throw InvalidArgument(at(Plan::name_of(operation.kind)) + ": the plan is one of " + what +
                          " (" + plan.text + ")");
  };
  if (plan.kind != operation.kind) refuse_plan(plan.operation());
  if (plan.rank != rank_ || plan.counts.size() != blocks_.size()) {
    refuse_plan("rank " + std::to_string(plan.rank) + " in a world of " +
                std::to_string(plan.counts.size()) + ", not of " + std::to_string(world()));
  }
}

void Engine::require_output_outside(const Plan& plan, const void* output) const {
  if (plan.output_bytes() == 0) return;
  if (output == nullptr) {
    throw InvalidArgument(at(plan.operation()) + ": out is null (" + plan.text + ")");
  }
  if (pool_.overlaps(static_cast<const std::byte*>(output), plan.output_bytes())) {
    throw InvalidArgument(at(plan.operation()) +
                          ": out overlaps a buffer of the pool; it must be the caller's memory (" +
                          plan.text + ")");
  }
}

Posting Engine::posting_from(const Plan& plan, const Buffer& buffer, size_t offset) const {
  const auto refuse_call = [&](const std::string& what) {
    throw InvalidArgument(at(plan.operation()) + ": " + what + " (" + plan.text + ")");
  };
  if (buffer.slot.role != plan.role || buffer.slot.lane != plan.lane) {
    refuse_call(std::string("the input was acquired for ") + name_of(buffer.slot.role) + ", lane " +
                std::to_string(buffer.slot.lane) + ", and is used for " + name_of(plan.role) +
                ", lane " + std::to_string(plan.lane));
  }
  if (!buffer.armed.load(std::memory_order_relaxed)) {
    refuse_call("the buffer was reduced already: acquire it again before writing it");
  }
  const size_t bytes = plan.input_bytes();
  if (offset > buffer.window.bytes || bytes > buffer.window.bytes - offset) {
    refuse_call(std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
                " exceed the buffer's " + std::to_string(buffer.window.bytes));
  }
  return Posting{buffer.window.ordinal, offset, plan.signature, plan.text};
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

bool Engine::from_pool(const Operation& operation, const Plan& plan, Buffer& buffer, size_t offset,
                       void* output, int threads, std::atomic<uint64_t>& count) {
  require_usable(plan.operation());
  require_fit(operation, plan);
  Exchange exchange(endpoint(plan.role, plan.lane, plan.operation()), plan.operation());
  return from_taken(operation, exchange, plan, buffer, offset, output, threads, count);
}

bool Engine::from_taken(const Operation& operation, Exchange& exchange, const Plan& plan,
                        Buffer& buffer, size_t offset, void* output, int threads,
                        std::atomic<uint64_t>& count) {
  const Posting posting = posting_from(plan, buffer, offset);
  require_output_outside(plan, output);
  return guarded([&] {
    exchange.open();
    buffer.armed.store(false, std::memory_order_relaxed);
    buffer.last_epoch = exchange.next_epoch();
    exchange.publish(posting);
    return collect(operation, exchange, plan, buffer.window.base + offset, output, threads, count);
  });
}

bool Engine::from_memory(const Operation& operation, const Plan& plan, const void* input,
                         void* output, int threads, std::atomic<uint64_t>& count) {
  require_usable(plan.operation());
  require_fit(operation, plan);
  Exchange exchange(endpoint(plan.role, plan.lane, plan.operation()), plan.operation());
  if (input == nullptr && plan.input_bytes() != 0) {
    throw InvalidArgument(at(plan.operation()) + ": input has no memory (" + plan.text + ")");
  }
  require_output_outside(plan, output);
  const auto* const rows = static_cast<const std::byte*>(input);
  return guarded([&] {
    exchange.open();
    Posting posting{Posting::kNothing, 0, plan.signature, plan.text};
    const size_t bytes = plan.input_bytes();
    if (world() > 1 && bytes > 0) {
      const auto stage = stage_for(plan, bytes);
      posting.ordinal = stage == nullptr ? Posting::kNoWindow : stage->window.ordinal;
      if (stage != nullptr) {
        stage->last_epoch = exchange.next_epoch();
        operation.stage(plan, rows, stage->window.base, threads);
      }
    }
    exchange.publish(posting);
    return collect(operation, exchange, plan, rows, output, threads, count);
  });
}

// Behind exchange.publish.
bool Engine::collect(const Operation& operation, Exchange& exchange, const Plan& plan,
                     const std::byte* own_rows, void* output, int threads,
                     std::atomic<uint64_t>& count) {
  const bool all_have_windows = exchange.meet();
  if (all_have_windows) {
    operation.transfer(exchange, *source_, plan, own_rows, static_cast<std::byte*>(output),
                       threads);
  }
  exchange.finish();
  if (all_have_windows) count.fetch_add(1, std::memory_order_relaxed);
  return all_have_windows;
}

}  // namespace symmoe
