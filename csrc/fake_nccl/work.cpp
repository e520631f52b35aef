#include "fake_nccl/work.h"

#include <algorithm>
#include <string>
#include <utility>

#include "fake_nccl/collectives.h"
#include "fake_nccl/log.h"
#include "fake_nccl/messages.h"
#include "fake_nccl/pace.h"
#include "fake_nccl/refusal.h"
#include "fake_nccl/settings.h"

namespace symmoe::fake {

Work::Work(std::shared_ptr<Communicator> communicator, std::vector<Operation> operations,
           bool captured)
    : communicator_(std::move(communicator)),
      operations_(std::move(operations)),
      captured_(captured) {
  // What a graph uses is looked at when it is replayed.
  if (captured_) return;
  ticket_ = communicator_->turnstile.take_ticket();
  count_use(1);
}

Work::~Work() { settle(); }

void Work::count_use(int change) {
  for (const Operation& operation : operations_) {
    if (operation.window != nullptr) operation.window->queued_work += change;
    for (const auto& allocation : operation.allocations) allocation->queued_work += change;
  }
}

void Work::settle() {
  if (captured_ || std::exchange(settled_, true)) return;
  count_use(-1);
  communicator_->turnstile.give_back(ticket_);
}

void Work::run() {
  Presence& presence = communicator_->presence;
  try {
    await_turn();
    const std::lock_guard lock(communicator_->queue);
    presence.require_working();
    require_memory();
    run_operations();
  } catch (const Refusal& refusal) {
    // After an abort nobody asks any more, and the peers find out by themselves.
    if (!presence.aborted()) presence.fail(refusal.code, refusal.text);
  }
  settle();
}

void Work::await_turn() {
  if (captured_) return;
  Presence& presence = communicator_->presence;
  Pace pace;
  const int64_t end = now_ns() + timeout_ns();
  while (!communicator_->turnstile.first(ticket_)) {
    presence.require_working();
    if (now_ns() > end) {
      throw Refusal{kNcclInvalidUsage,
                    "earlier work of this communicator does not end; its stream may wait for this "
                    "one"};
    }
    pace.pause();
  }
}

// What a graph, or work that came late, must not touch any more.
void Work::require_memory() const {
  const Presence& presence = communicator_->presence;
  const std::string where = " on rank " + std::to_string(presence.rank());
  if (presence.left()) {
    const std::string text = operations_.front().name + where + " runs after ncclCommDestroy";
    log_misuse(text);
    throw Refusal{kNcclInvalidUsage, text};
  }
  for (const Operation& operation : operations_) {
    std::string gone;
    if (operation.window != nullptr && operation.window->closed) {
      gone = "window " + std::to_string(operation.window->ordinal) + ", which was deregistered";
    }
    const auto freed = std::ranges::find_if(
        operation.allocations, [](const auto& allocation) { return allocation->freed.load(); });
    if (freed != operation.allocations.end()) gone = "memory that was freed";
    if (gone.empty()) continue;
    std::string text = operation.name;
    text.append(where).append(" uses ").append(gone);
    log_misuse(text);
    throw Refusal{kNcclInvalidUsage, text};
  }
}

void Work::run_operations() {
  Presence& presence = communicator_->presence;
  std::vector<const Operation*> messages;
  for (const Operation& operation : operations_) {
    const Failure& failure = operation.failure;
    if (failure.action == Failure::Action::kDelay) presence.sleep(failure.milliseconds);
    if (failure.action == Failure::Action::kHang) presence.hang(operation.name);
    if (failure.action == Failure::Action::kAsync) {
      throw Refusal{kNcclSystemError, std::string("injected failure of queued ") + operation.name +
                                          " on rank " + std::to_string(presence.rank())};
    }
    if (operation.message()) {
      messages.push_back(&operation);
    } else {
      run_collective(presence, operation);
    }
  }
  if (!messages.empty()) exchange_messages(presence, messages);
}

}  // namespace symmoe::fake
