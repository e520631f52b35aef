#include "sync/adaptive_wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "base/clock.h"
#include "base/error.h"

namespace symmoe {
namespace {

// Checks between two looks at the clock: reading it costs as much as a few pauses.
constexpr int kChecksPerClock = 4;

// A yield that takes less has come straight back: nobody else could run. Happens when the peer is
// in another session (the scheduler's autogroups yield only among themselves) or not runnable at
// all.
constexpr int64_t kFutileYieldNs = 1'000;
// After so many in a row only sleeping can let a peer run that needs this processor.
constexpr int kMaxFutileYields = 8;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

std::atomic<uint32_t>& word(FlagLine& line, Counter counter) {
  return counter == Counter::kEpoch ? line.epoch : line.done;
}

std::atomic<uint32_t>& waiters(FlagLine& line, Counter counter) {
  return counter == Counter::kEpoch ? line.epoch_waiters : line.done_waiters;
}

// Not FUTEX_PRIVATE: the word is shared between processes that map it at different addresses.
void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

// Sleeps until the counter leaves `seen`, at most `ns`. The waiter count is raised before the
// counter is read again (both sequentially consistent), so that a publisher either sees the count
// or this rank sees its store: no wake-up is lost.
void sleep_on(FlagLine& line, Counter counter, uint32_t target, int64_t ns) {
  waiters(line, counter).fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = word(line, counter).load(std::memory_order_seq_cst);
  if (!reached(seen, target)) {
    const timespec timeout{ns / 1'000'000'000, ns % 1'000'000'000};
    futex(word(line, counter), FUTEX_WAIT, seen, &timeout);
  }
  waiters(line, counter).fetch_sub(1, std::memory_order_seq_cst);
}

struct Missing {
  int rank = -1;             // some rank that has not arrived; -1: all have
  bool on_this_cpu = false;  // one of them last ran here, so it needs this processor
};

Missing find_missing(FlagLine* const* lines, int ranks, int self, Counter counter,
                     uint32_t target) {
  Missing missing;
  const uint32_t here = current_cpu();
  for (int i = 1; i < ranks; ++i) {
    const int rank = (self + i) % ranks;
    FlagLine& line = *lines[rank];
    if (reached(word(line, counter).load(std::memory_order_acquire), target)) continue;
    missing.rank = rank;
    if (line.cpu.load(std::memory_order_relaxed) == here) missing.on_this_cpu = true;
  }
  return missing;
}

bool arrived(FlagLine& line, Counter counter, uint32_t target) {
  return reached(word(line, counter).load(std::memory_order_acquire), target);
}

std::string describe_missing(FlagLine* const* lines, int ranks, int self, Counter counter,
                             uint32_t target) {
  std::string text;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == self || arrived(*lines[rank], counter, target)) continue;
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " (at epoch " +
            std::to_string(word(*lines[rank], counter).load(std::memory_order_relaxed)) + ")";
  }
  return text;
}

// "reduce_scatter (combine, lane 0), rank 1, epoch 17"
std::string context_of(const CallName& call, int self, Counter counter, uint32_t target) {
  return std::string(call.operation) + " (" + call.channel + "), rank " + std::to_string(self) +
         ", epoch " + std::to_string(target) +
         (counter == Counter::kDone ? ", waiting for its readers" : "");
}

}  // namespace

uint32_t current_cpu() {
  const int cpu = sched_getcpu();
  return cpu < 0 ? UINT32_MAX : static_cast<uint32_t>(cpu);
}

void wake_waiters(FlagLine& line, Counter counter) {
  if (waiters(line, counter).load(std::memory_order_seq_cst) != 0) {
    futex(word(line, counter), FUTEX_WAKE, INT_MAX, nullptr);
  }
}

void adaptive_wait(FlagLine* const* lines, int ranks, int self, Counter counter, uint32_t target,
                   const WaitPolicy& policy, Watch& watch, const CallName& call) {
  Missing missing = find_missing(lines, ranks, self, counter, target);
  if (missing.rank < 0) return;

  const int64_t begin = now_ns();
  int64_t spin_begin = begin;
  int64_t last_yield = begin;
  int64_t last_look = begin;
  int futile_yields = 0;
  for (;;) {
    int64_t now = now_ns();
    if (now - spin_begin < policy.spin_ns && futile_yields < kMaxFutileYields) {
      if (missing.on_this_cpu || now - last_yield > policy.yield_ns) {
        sched_yield();
        last_yield = now_ns();
        const bool futile = missing.on_this_cpu && last_yield - now < kFutileYieldNs;
        futile_yields = futile ? futile_yields + 1 : 0;
      } else {
        for (int i = 0; i < kChecksPerClock && !arrived(*lines[missing.rank], counter, target);
             ++i) {
          pause();
        }
      }
    } else {
      sleep_on(*lines[missing.rank], counter, target, policy.slice_ns);
      spin_begin = last_yield = now = now_ns();
      futile_yields = 0;
    }

    missing = find_missing(lines, ranks, self, counter, target);
    if (missing.rank < 0) return;

    if (now - last_look >= policy.slice_ns) {
      last_look = now;
      const std::string context = context_of(call, self, counter, target);
      for (int rank = 0; rank < ranks; ++rank) {
        if (rank == self || arrived(*lines[rank], counter, target)) continue;
        try {
          watch.look(rank, now - begin, context);
        } catch (const Interrupted&) {
          throw;  // whoever arrived: the caller is to stop
        } catch (...) {
          // It may have arrived, and ended, just before the look.
          if (!arrived(*lines[rank], counter, target)) throw;
        }
      }
      if (now - begin >= policy.deadline_ns) {
        missing = find_missing(lines, ranks, self, counter, target);
        if (missing.rank < 0) return;  // during the looks
        throw DeadlineExceeded(context + ": waited " + std::to_string((now - begin) / 1'000'000) +
                               " ms for " + describe_missing(lines, ranks, self, counter, target));
      }
    }
  }
}

}  // namespace symmoe
