#include "kernels/device/emulator/block.h"

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "kernels/device/emulator/options.h"
#include "kernels/device/emulator/sanitizers.h"
#include "kernels/device/emulator/violation.h"

namespace symmoe::emulator {
namespace {

thread_local Block* current_block = nullptr;

// A block that has waited for so long sleeps between two looks.
constexpr int64_t kPatienceNs = 1'000'000;
constexpr int64_t kNapNs = 50'000;

// splitmix64: neighbouring seeds give unlike sequences.
uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

SYMMOE_BOOKKEEPING Block* Block::current() { return current_block; }

SYMMOE_BOOKKEEPING uint64_t Block::random() {
  random_state_ += 0x9e3779b97f4a7c15u;
  return mixed(random_state_);
}

SYMMOE_BOOKKEEPING void Block::begin(unsigned index, unsigned blocks, unsigned threads) {
  index_ = index;
  blocks_ = blocks;
  threads_ = threads;
  alive_ = threads;
  running_ = threads;
  last_ = threads - 1;
  random_state_ = options().seed == 0 ? 0 : mixed(options().seed) + index + 1;
  last_progress_ns_ = now_ns();
  all_ = Barrier{};
  for (unsigned& meeting : refused_meeting_) meeting = 0;
  for (Barrier& warp : warp_) warp = Barrier{};
  shared_.clear();
  counters_ = {};
  while (made_.size() < threads) {
    made_.push_back(std::make_unique<Thread>());
    thread_[made_.size() - 1] = made_.back().get();
  }
  for (unsigned i = 0; i < threads; ++i) {
    Thread& thread = *thread_[i];
    thread.state = State::kReady;
    thread.spins = false;
    thread.waits_for = nullptr;
    thread.fiber.start(thread_main);
  }
}

SYMMOE_BOOKKEEPING void Block::run(const std::function<void()>& kernel, unsigned index,
                                   unsigned blocks, unsigned threads) {
  if (current_block != nullptr) violation("a kernel is launched by a kernel");
  begin(index, blocks, threads);
  kernel_ = &kernel;
  current_block = this;
  order_before(&begin_order_);
  while (alive_ > 0) {
    running_ = choose();
    last_ = running_;
    thread_[running_]->fiber.resume();
    running_ = threads_;
  }
  order_after(&end_order_);
  current_block = nullptr;
}

SYMMOE_BOOKKEEPING unsigned Block::choose() {
  const unsigned start = random_state_ != 0 ? static_cast<unsigned>(random() % threads_)
                                            : (last_ + 1 == threads_ ? 0 : last_ + 1);
  for (unsigned i = start; i < threads_; ++i) {
    if (thread_[i]->state == State::kReady) return i;
  }
  for (unsigned i = 0; i < start; ++i) {
    if (thread_[i]->state == State::kReady) return i;
  }
  report_stuck();
}

void Block::report_stuck() const {
  for (unsigned i = 0; i < threads_; ++i) {
    const Barrier* barrier = thread_[i]->waits_for;
    if (thread_[i]->state != State::kWaiting) continue;
    violation("divergent barrier: block %u: thread %u waits at %s:%u, and not all others come",
              index_, i, barrier->file, static_cast<unsigned>(barrier->line));
  }
  violation("no thread can go on");
}

SYMMOE_BOOKKEEPING void Block::thread_main() {
  Block& block = *current_block;
  Fiber& fiber = block.thread_[block.running_]->fiber;
  fiber.enter();
  order_after(&block.begin_order_);
  (*block.kernel_)();
  order_before(&block.end_order_);
  block.finish_thread();
  fiber.finish();
}

SYMMOE_BOOKKEEPING void Block::finish_thread() {
  thread_[running_]->state = State::kDone;
  --alive_;
  last_progress_ns_ = now_ns();
  if (all_.arrived > 0) {
    violation("returned while other threads wait at the barrier %s:%u", all_.file,
              static_cast<unsigned>(all_.line));
  }
}

SYMMOE_BOOKKEEPING void Block::meet(Barrier& barrier, unsigned first, unsigned count,
                                    const char* what, std::source_location where) {
  for (unsigned i = first; i < first + count; ++i) {
    if (thread_[i]->state == State::kDone) {
      violation("%s at %s:%u, but thread %u has returned before it", what, where.file_name(),
                static_cast<unsigned>(where.line()), i);
    }
  }
  if (barrier.arrived == 0) {
    barrier.file = where.file_name();
    barrier.line = where.line();
  } else if (barrier.line != where.line() || barrier.file != where.file_name()) {
    violation("divergent barrier: %s at %s:%u, while other threads wait at %s:%u", what,
              where.file_name(), static_cast<unsigned>(where.line()), barrier.file,
              static_cast<unsigned>(barrier.line));
  }
  char* const order = &barrier.order[barrier.generation % 2];
  order_before(order);
  Thread& self = *thread_[running_];
  if (++barrier.arrived < count) {
    self.state = State::kWaiting;
    self.waits_for = &barrier;
    self.fiber.pause();
  } else {
    barrier.arrived = 0;
    ++barrier.generation;
    last_progress_ns_ = now_ns();
    for (unsigned i = first; i < first + count; ++i) {
      if (thread_[i]->waits_for == &barrier) {
        thread_[i]->state = State::kReady;
        thread_[i]->waits_for = nullptr;
      }
    }
    // The last to come need not be the first to go.
    if (random_state_ != 0) self.fiber.pause();
  }
  order_after(order);
}

SYMMOE_BOOKKEEPING void Block::sync(std::source_location where) {
  meet(all_, 0, threads_, "__syncthreads", where);
}

SYMMOE_BOOKKEEPING bool Block::sync_and(bool mine, std::source_location where) {
  const unsigned meeting = all_.generation + 1;
  unsigned& refused = refused_meeting_[meeting % 2];
  if (!mine) refused = meeting;
  meet(all_, 0, threads_, "__syncthreads_and", where);
  return refused != meeting;
}

SYMMOE_BOOKKEEPING void Block::sync_warp(std::source_location where) {
  const unsigned warp = running_ / kWarp;
  const unsigned first = warp * kWarp;
  meet(warp_[warp], first, threads_ - first < kWarp ? threads_ - first : kWarp, "__syncwarp",
       where);
}

SYMMOE_BOOKKEEPING void Block::show(uint64_t value) { thread_[running_]->shown = value; }

SYMMOE_BOOKKEEPING uint64_t Block::shown_by(unsigned lane) const {
  const unsigned thread = running_ / kWarp * kWarp + lane;
  if (lane >= kWarp || thread >= threads_) {
    violation("a shuffle asks lane %u, which does not exist", lane);
  }
  return thread_[thread]->shown;
}

SYMMOE_BOOKKEEPING void Block::spin() {
  const int64_t waited_ms = (now_ns() - last_progress_ns_) / 1'000'000;
  if (waited_ms > options().spin_timeout_ms) {
    violation("waited for %lld ms for something that does not come",
              static_cast<long long>(waited_ms));
  }
  pause();
}

SYMMOE_BOOKKEEPING void Block::pause() {
  // Whoever is waited for may need the processor.
  if (now_ns() - last_progress_ns_ > kPatienceNs) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(kNapNs));
  } else {
    std::this_thread::yield();
  }
  thread_[running_]->fiber.pause();
}

}  // namespace symmoe::emulator
