#include "measure/start_line.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "base/clock.h"
#include "base/error.h"

namespace symmoe::measure {
namespace {

// Spinning longer than this while waiting for a slow rank only takes its processor away.
constexpr int64_t kSpinNs = 100'000;
// On a crowded machine a rank that runs must let the others pass often, even if none is known to
// wait for this very processor.
constexpr int64_t kCrowdedYieldNs = 2'000;
constexpr int64_t kFutexSliceNs = 100'000'000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool reached(uint32_t epoch, uint32_t target) { return static_cast<int32_t>(epoch - target) >= 0; }

}  // namespace

// Two lines, so that the adjacent-line prefetcher does not tie neighbours together.
struct alignas(128) StartLine::Mark {
  std::atomic<uint32_t> epoch;
  std::atomic<uint32_t> cpu;
  std::atomic<uint32_t> sleepers;
};

size_t StartLine::bytes_for(int ranks) { return static_cast<size_t>(ranks) * sizeof(Mark); }

StartLine::StartLine(const std::string& path, int ranks, int rank, int64_t deadline_ns)
    : ranks_(ranks), rank_(rank), deadline_ns_(deadline_ns) {
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    throw InvalidArgument("start line: rank " + std::to_string(rank) + " of " +
                          std::to_string(ranks));
  }
  crowded_ = ranks > sysconf(_SC_NPROCESSORS_ONLN);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) throw_errno("start line: open " + path);
  void* memory = mmap(nullptr, bytes_for(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) throw_errno("start line: mmap " + path);
  marks_ = static_cast<Mark*>(memory);
}

StartLine::~StartLine() { munmap(marks_, bytes_for(ranks_)); }

int64_t StartLine::start() {
  // The first round absorbs how late the slowest rank is: those who slept are awake after it, so
  // the second lets all go within a cache miss of each other.
  arrive();
  wait(true);
  cross();
  return now_ns();
}

void StartLine::cross() {
  arrive();
  wait(false);
}

void StartLine::arrive() {
  Mark& mine = marks_[rank_];
  ++epoch_;
  mine.cpu.store(static_cast<uint32_t>(sched_getcpu()), std::memory_order_relaxed);
  // Sequentially consistent with the sleeper's count: one of the two sides sees the other.
  mine.epoch.store(epoch_, std::memory_order_seq_cst);
  if (mine.sleepers.load(std::memory_order_seq_cst) != 0) {
    syscall(SYS_futex, &mine.epoch, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

bool StartLine::all_arrived(bool& peer_on_this_cpu, int& missing) const {
  const auto here = static_cast<uint32_t>(sched_getcpu());
  peer_on_this_cpu = false;
  missing = -1;
  for (int step = 1; step < ranks_; ++step) {
    const int peer = (rank_ + step) % ranks_;
    const Mark& mark = marks_[peer];
    if (reached(mark.epoch.load(std::memory_order_acquire), epoch_)) continue;
    missing = peer;
    if (mark.cpu.load(std::memory_order_relaxed) == here) peer_on_this_cpu = true;
  }
  return missing < 0;
}

void StartLine::wait(bool may_sleep) {
  bool peer_on_this_cpu = false;
  int missing = -1;
  if (all_arrived(peer_on_this_cpu, missing)) return;
  const int64_t begin = now_ns();
  int64_t last_yield = begin;
  while (!all_arrived(peer_on_this_cpu, missing)) {
    const int64_t now = now_ns();
    if (now - begin > deadline_ns_) {
      throw DeadlineExceeded("start line: rank " + std::to_string(rank_) + " waited " +
                             std::to_string(deadline_ns_ / 1'000'000) + " ms for rank " +
                             std::to_string(missing));
    }
    const bool patient = now - begin < kSpinNs;
    if (!patient && may_sleep) {
      sleep_until_arrival(missing);
    } else if (peer_on_this_cpu || !patient || (crowded_ && now - last_yield > kCrowdedYieldNs)) {
      sched_yield();
      last_yield = now_ns();
    } else {
      pause();
    }
  }
}

void StartLine::sleep_until_arrival(int missing) {
  Mark& mark = marks_[missing];
  mark.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = mark.epoch.load(std::memory_order_seq_cst);
  if (!reached(seen, epoch_)) {
    const timespec slice{0, kFutexSliceNs};
    syscall(SYS_futex, &mark.epoch, FUTEX_WAIT, seen, &slice, nullptr, 0);
  }
  mark.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace symmoe::measure
