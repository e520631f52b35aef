#include "collectives/device/watchdog.h"

#include <chrono>
#include <exception>
#include <utility>

#include "windows/fork_guard.h"

namespace symmoe {

Watchdog::Watchdog(int64_t period_ns, Look look, Bark bark)
    : period_ns_(period_ns),
      generation_(fork_generation()),
      look_(std::move(look)),
      bark_(std::move(bark)),
      thread_([this] { watch(); }) {}

Watchdog::~Watchdog() { stop(); }

void Watchdog::stop() {
  if (fork_generation() != generation_) {
    thread_.detach();  // of the parent
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  const auto period = std::chrono::nanoseconds(period_ns_);
  while (!wake_.wait_for(lock, period, [this] { return stopping_; })) {
    lock.unlock();
    try {
      look_();
    } catch (const std::exception& error) {
      bark_(error.what());
      return;
    }
    lock.lock();
  }
}

}  // namespace symmoe
