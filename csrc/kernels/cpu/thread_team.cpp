#include "kernels/cpu/thread_team.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "base/clock.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace symmoe::kernels {
namespace {

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Waits until `word` differs from `old`: first spinning, because calls of a layer follow each other
// closely and a futex wake costs tens of microseconds, then parked.
void wait_change(const std::atomic<uint32_t>& word, uint32_t old, int64_t spin_ns) {
  const int64_t start = now_ns();
  do {
    for (int i = 0; i < 32; ++i) {
      if (word.load(std::memory_order_acquire) != old) return;
      pause_briefly();
    }
  } while (now_ns() - start < spin_ns);
  word.wait(old, std::memory_order_acquire);
}

// Short: on a machine with one rank per core the worker sits on a core that a rank needs.
constexpr int64_t kIdleSpinNs = 5'000;
// The caller has nothing else to do, and parts end at about the same time.
constexpr int64_t kJoinSpinNs = 50'000;

class Team {
 public:
  // As many of `wanted` workers as the system grants.
  int grow(int wanted) noexcept {
    // Signals are the application's: its own threads handle them.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    if (static_cast<int>(workers_.size()) < wanted) {
      pthread_sigmask(SIG_SETMASK, &all, &before);
      try {
        while (static_cast<int>(workers_.size()) < wanted) {
          workers_.reserve(workers_.size() + 1);
          auto worker = std::make_unique<Worker>();
          worker->thread =
              std::thread(&Team::work, this, worker.get(), static_cast<int>(workers_.size()));
          workers_.push_back(std::move(worker));
        }
      } catch (const std::system_error&) {
      } catch (const std::bad_alloc&) {
      }
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    return std::min(wanted, static_cast<int>(workers_.size()));
  }

  // helpers <= what grow() returned.
  void run(int parts, int helpers, PartFunction part, void* context) noexcept {
    part_ = part;
    context_ = context;
    parts_ = parts;
    stride_ = helpers + 1;
    pending_.store(static_cast<uint32_t>(helpers), std::memory_order_relaxed);
    for (int i = 0; i < helpers; ++i) wake(*workers_[static_cast<size_t>(i)]);
    for (int p = 0; p < parts; p += stride_) part(context, p);
    for (uint32_t left; (left = pending_.load(std::memory_order_acquire)) != 0;) {
      wait_change(pending_, left, kJoinSpinNs);
    }
  }

  void stop() {
    stopping_.store(true, std::memory_order_relaxed);
    for (auto& worker : workers_) wake(*worker);
    for (auto& worker : workers_) worker->thread.join();
  }

  Team* abandoned_before = nullptr;

 private:
  struct Worker {
    alignas(64) std::atomic<uint32_t> ticket{0};
    std::thread thread;
  };

  static void wake(Worker& worker) {
    worker.ticket.fetch_add(1, std::memory_order_release);
    worker.ticket.notify_one();
  }

  void work(Worker* self, int number) noexcept {
    for (uint32_t seen = 0;; ++seen) {
      while (self->ticket.load(std::memory_order_acquire) == seen) {
        wait_change(self->ticket, seen, kIdleSpinNs);
      }
      if (stopping_.load(std::memory_order_relaxed)) return;
      for (int p = number + 1; p < parts_; p += stride_) part_(context_, p);
      if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
    }
  }

  std::vector<std::unique_ptr<Worker>> workers_;
  PartFunction part_ = nullptr;
  void* context_ = nullptr;
  int parts_ = 0;
  int stride_ = 1;
  alignas(64) std::atomic<uint32_t> pending_{0};
  std::atomic<bool> stopping_{false};
};

// The process's team. Whoever holds `busy` may make, grow and use it.
class TeamOwner {
 public:
  TeamOwner() { pthread_atfork(nullptr, nullptr, &TeamOwner::forget_in_child); }

  // A worker that is still busy at exit (another thread is inside a kernel) is left to the kernel.
  ~TeamOwner() {
    constexpr int64_t kPatienceNs = 1'000'000'000;
    const int64_t start = now_ns();
    while (!try_lock()) {
      if (now_ns() - start > kPatienceNs) return;
      std::this_thread::yield();
    }
    // Stays locked: calls from later destructors run on their own thread.
    if (team_ != nullptr) {
      team_->stop();
      delete team_;
      team_ = nullptr;
    }
  }

  static TeamOwner& instance() {
    static TeamOwner owner;
    return owner;
  }

  bool try_lock() { return !busy_.exchange(true, std::memory_order_acquire); }
  void unlock() { busy_.store(false, std::memory_order_release); }

  Team* team() noexcept {
    if (team_ == nullptr) team_ = new (std::nothrow) Team;
    return team_;
  }

 private:
  // The child has none of the threads. Joining or freeing them is impossible, so the old team
  // stays reachable but is never used again.
  static void forget_in_child() {
    TeamOwner& owner = instance();
    if (owner.team_ != nullptr) {
      owner.team_->abandoned_before = owner.abandoned_;
      owner.abandoned_ = owner.team_;
      owner.team_ = nullptr;
    }
    owner.unlock();
  }

  std::atomic<bool> busy_{false};
  Team* team_ = nullptr;
  Team* abandoned_ = nullptr;
};

}  // namespace

void run_parts(int parts, PartFunction part, void* context) noexcept {
  if (parts > 1) {
    TeamOwner& owner = TeamOwner::instance();
    if (owner.try_lock()) {
      Team* team = owner.team();
      const int helpers = team != nullptr ? team->grow(parts - 1) : 0;
      if (helpers > 0) {
        team->run(parts, helpers, part, context);
        owner.unlock();
        return;
      }
      owner.unlock();
    }
  }
  for (int p = 0; p < parts; ++p) part(context, p);
}

int useful_threads(int threads, int64_t bytes) {
  // A parked worker needs 30 to 60 us to wake; one thread moves about 2 MiB meanwhile.
  constexpr int64_t kBytesPerThread = 2 << 20;
  constexpr int kMostThreads = 256;
  if (threads <= 1) return 1;
  const int64_t worth = std::max<int64_t>(1, bytes / kBytesPerThread);
  return static_cast<int>(std::min<int64_t>({threads, worth, kMostThreads}));
}

}  // namespace symmoe::kernels
