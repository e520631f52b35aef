#include "backends/host/worker.h"

#include <cstdint>
#include <ctime>
#include <thread>
#include <vector>

namespace symmoe::host {
namespace {

std::atomic<bool> stopping = false;
std::atomic<int> running = 0;  // workers that are inside Work::run or its destruction
std::atomic<int> closing = 0;  // workers that are closed and will end

// Threads that have come to their end. Whoever starts or closes a worker next joins them, so that
// what the C library then does with their remains is in order with what they did.
struct EndedThreads {
  std::mutex mutex;
  std::vector<std::thread> threads;
  bool joined_for_good = false;  // the process ends
};

// Never destroyed: streams may still run while the process ends.
EndedThreads& ended() {
  static auto* const all = new EndedThreads;
  return *all;
}

void join_ended_threads(bool for_good = false) {
  const std::lock_guard lock(ended().mutex);
  if (for_good) ended().joined_for_good = true;
  for (std::thread& thread : ended().threads) thread.join();
  ended().threads.clear();
}

void sleep_ms(int64_t milliseconds) {
  const timespec duration{milliseconds / 1000, milliseconds % 1000 * 1'000'000};
  nanosleep(&duration, nullptr);
}

// False if the process ends: then the step is not taken.
bool take(Step& step) {
  if (step.wait_for) step.wait_for->wait();
  running.fetch_add(1);
  // Pairs with stop_all, which sets the one and then reads the other: one of the two sees it.
  if (stopping.load()) {
    running.fetch_sub(1);
    return false;
  }
  if (step.work) {
    step.work->run();
    step.work.reset();
  }
  running.fetch_sub(1);
  step.reach->reach();
  return true;
}

}  // namespace

void Point::reach() {
  const std::lock_guard lock(mutex_);
  reached_ = true;
  changed_.notify_all();
}

bool Point::reached() const {
  const std::lock_guard lock(mutex_);
  return reached_;
}

void Point::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached_; });
}

void Worker::push(Step step) {
  if (!step.reach) step.reach = std::make_shared<Point>();
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {
    join_ended_threads();
    thread_ = std::thread([self = shared_from_this()] { self->loop(); });
  }
  tail_ = step.reach;
  steps_.push_back(std::move(step));
  changed_.notify_one();
}

std::shared_ptr<Point> Worker::tail() const {
  const std::lock_guard lock(mutex_);
  return tail_;
}

void Worker::close() {
  join_ended_threads();
  const std::lock_guard lock(mutex_);
  closing_ = true;
  if (thread_.joinable()) closing.fetch_add(1);
  changed_.notify_one();
}

void Worker::loop() {
  while (true) {
    Step step;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || !steps_.empty(); });
      if (steps_.empty()) return end_thread();
      step = std::move(steps_.front());
      steps_.pop_front();
    }
    if (!take(step)) stay();
  }
}

// With all that the thread owns: what its work uses is being destroyed.
void Worker::stay() {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) closing.fetch_sub(1);
  }
  while (true) sleep_ms(1000);
}

// Of the thread itself, with the lock held: push has stored the thread.
void Worker::end_thread() {
  const std::lock_guard lock(ended().mutex);
  if (ended().joined_for_good) {
    thread_.detach();
  } else {
    ended().threads.push_back(std::move(thread_));
  }
  closing.fetch_sub(1);
}

void Worker::stop_all() {
  constexpr int kPatienceMs = 1000;
  stopping.store(true);
  for (int waited = 0; waited < kPatienceMs && running.load() + closing.load() > 0; ++waited) {
    sleep_ms(1);
  }
  join_ended_threads(true);
}

}  // namespace symmoe::host
