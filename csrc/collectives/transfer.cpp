// What all calls that move rows have in common: checks of the caller's memory, staging, and the one
// barrier between writing and reading.
#include <string>

#include "collectives/engine.h"
#include "collectives/operation.h"
#include "pool/outputs.h"

namespace symmoe {
namespace {

uint64_t hash_of(const Call& call) { return call.routing == nullptr ? 0 : call.routing->hash(); }

}  // namespace

void Engine::require_fit(const Call& call) const {
  const Plan& plan = call.plan;
  const auto refuse = [&](const std::string& what) {
    throw InvalidArgument(at(Plan::name_of(call.operation.kind)) + ": " + what + " (" + plan.text +
                          ")");
  };
  if (plan.kind != call.operation.kind) {
    refuse(std::string("the plan is one of ") + plan.operation());
  }
  if (plan.rank != rank_ || plan.counts.size() != blocks_.size()) {
    refuse("the plan is one of rank " + std::to_string(plan.rank) + " in a world of " +
           std::to_string(plan.counts.size()) + ", not of " + std::to_string(world()));
  }
  if (plan.routed != call.operation.routed) {
    refuse(plan.routed ? "the plan is one of routed calls, and there is no routing"
                       : "there is a routing, and the plan is one of calls without");
  }
  if (call.routing != nullptr && call.routing->rows() != plan.rows) {
    refuse("the routing has " + std::to_string(call.routing->rows()) + " rows");
  }
  if (call.epilogue != nullptr) {
    kernels::check_epilogue(*call.epilogue, plan.dtype, plan.own_count());
  }
}

std::string Engine::why_no_output(const void* memory, size_t bytes, int lane) const {
  const auto* const begin = static_cast<const std::byte*>(memory);
  if (bytes == 0 || !pool_.overlaps(begin, bytes)) return "";
  size_t offset = 0;
  const std::shared_ptr<Buffer> buffer = pool_.find(begin, &offset);
  return symmoe::why_no_output(buffer.get(), offset, bytes, lane);
}

void Engine::require_places(const Call& call) const {
  const Plan& plan = call.plan;
  if (plan.output_bytes() == 0) return;
  if (call.output == nullptr) {
    throw InvalidArgument(at(plan.operation()) + ": out is null (" + plan.text + ")");
  }
  const std::string reason = why_no_output(call.output, call.output_bytes(), plan.lane);
  if (!reason.empty()) {
    throw InvalidArgument(at(plan.operation()) + ": out " + reason + " (" + plan.text + ")");
  }
  if (call.epilogue == nullptr) return;
  const auto require_outside = [&](const char* name, const void* memory, size_t bytes) {
    if (memory == nullptr || !pool_.overlaps(static_cast<const std::byte*>(memory), bytes)) return;
    throw InvalidArgument(at(plan.operation()) + ": " + name +
                          " overlaps a window; it must be the caller's memory (" + plan.text + ")");
  };
  const auto rows = static_cast<size_t>(plan.own_count());
  require_outside("residual", call.epilogue->residual, plan.output_bytes());
  require_outside("shared", call.epilogue->shared, plan.output_bytes());
  require_outside("scales", call.epilogue->scales, rows * sizeof(float));
  require_outside("norm_weight", call.epilogue->norm_weight,
                  static_cast<size_t>(plan.hidden) * size_of(call.epilogue->weight_type));
}

// Peers read the input while the output is written. Of a reduce-scatter each element is read before
// it is written, and the caller sees to the rest.
void Engine::require_apart(const Call& call, MemoryRange input) const {
  const Plan& plan = call.plan;
  if (plan.kind != Plan::Kind::kAllGather || input.bytes == 0) return;
  const MemoryRange output{static_cast<const std::byte*>(call.output), call.output_bytes()};
  if (is_apart(input, output)) return;
  if (input.begin == output.begin + plan.bytes_of(plan.own_begin())) return;
  throw InvalidArgument(at(plan.operation()) +
                        ": out overlaps input, which is not exactly the own rows of it (" +
                        plan.text + ")");
}

Posting Engine::posting_from(const Call& call, const Buffer& buffer, size_t offset) const {
  const Plan& plan = call.plan;
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
  return Posting{buffer.window.ordinal, offset, plan.signature, plan.text, hash_of(call)};
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

bool Engine::from_pool(const Call& call, Buffer& buffer, size_t offset) {
  const Plan& plan = call.plan;
  require_usable(plan.operation());
  require_fit(call);
  Exchange exchange(endpoint(plan.role, plan.lane, plan.operation()), plan.operation());
  return from_taken(call, exchange, buffer, offset);
}

bool Engine::from_taken(const Call& call, Exchange& exchange, Buffer& buffer, size_t offset) {
  const Posting posting = posting_from(call, buffer, offset);
  require_places(call);
  require_apart(call, {buffer.window.base + offset, call.plan.input_bytes()});
  return guarded([&] {
    exchange.open();
    buffer.armed.store(false, std::memory_order_relaxed);
    buffer.last_epoch = exchange.next_epoch();
    exchange.publish(posting);
    return collect(call, exchange, buffer.window.base + offset);
  });
}

bool Engine::from_memory(const Call& call, const void* input) {
  const Plan& plan = call.plan;
  require_usable(plan.operation());
  require_fit(call);
  Exchange exchange(endpoint(plan.role, plan.lane, plan.operation()), plan.operation());
  if (input == nullptr && plan.input_bytes() != 0) {
    throw InvalidArgument(at(plan.operation()) + ": input has no memory (" + plan.text + ")");
  }
  require_places(call);
  const auto* const rows = static_cast<const std::byte*>(input);
  require_apart(call, {rows, plan.input_bytes()});
  return guarded([&] {
    exchange.open();
    Posting posting{Posting::kNothing, 0, plan.signature, plan.text, hash_of(call)};
    const size_t bytes = plan.input_bytes();
    if (world() > 1 && bytes > 0) {
      const auto stage = stage_for(plan, bytes);
      posting.ordinal = stage == nullptr ? Posting::kNoWindow : stage->window.ordinal;
      if (stage != nullptr) {
        stage->last_epoch = exchange.next_epoch();
        call.operation.stage(plan, call.routing, rows, stage->window.base, call.threads);
      }
    }
    exchange.publish(posting);
    return collect(call, exchange, rows);
  });
}

// Behind exchange.publish.
bool Engine::collect(const Call& call, Exchange& exchange, const std::byte* own_rows) {
  const bool all_have_windows = exchange.meet();
  if (all_have_windows) {
    call.operation.transfer(exchange, *source_, call, own_rows);
  }
  exchange.finish();
  if (!all_have_windows) return false;
  use_up_output(call);
  call.count.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// Gathered rows are there to be read: the window that they lie in, if any, is written again only
// once it has been acquired again, on every rank alike.
void Engine::use_up_output(const Call& call) const {
  if (call.operation.kind != Plan::Kind::kAllGather || call.output_bytes() == 0) return;
  size_t offset = 0;
  const auto buffer = pool_.find(static_cast<const std::byte*>(call.output), &offset);
  if (buffer != nullptr) buffer->armed.store(false, std::memory_order_relaxed);
}

}  // namespace symmoe
