#pragma once

// Runs a test's ranks as processes of their own, which meet in memory shared with the test.

#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "check.h"
#include "windows/mesh.h"

namespace symmoe::check {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int kMaxRanks = 8;
// Far beyond what any test takes, also under a sanitizer on a busy machine.
constexpr int64_t kPatience = 60 * kSecond;

inline void sleep_ms(int64_t milliseconds) {
  const timespec time{static_cast<time_t>(milliseconds / 1000), milliseconds % 1000 * 1'000'000};
  nanosleep(&time, nullptr);
}

// Waits for something that another process brings about.
inline void wait_until(const std::function<bool()>& condition) {
  const int64_t end = now_ns() + kPatience;
  while (!condition()) {
    CHECK(now_ns() < end);
    sleep_ms(1);
  }
}

// What the processes of a test share, besides the code under test.
struct Meeting {
  std::array<std::atomic<int>, 64> arrived{};  // one count per barrier, each used once
  std::array<std::atomic<int64_t>, 16> notes{};
  std::atomic<bool> failed = false;  // a rank's check failed: the others need not wait for it
  std::array<std::array<char, 64>, kMaxRanks> addresses{};
};

class SharedMeeting {
 public:
  SharedMeeting() {
    void* const memory =
        mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    meeting_ = new (memory) Meeting;
  }
  ~SharedMeeting() { munmap(meeting_, sizeof(Meeting)); }
  SharedMeeting(const SharedMeeting&) = delete;
  SharedMeeting& operator=(const SharedMeeting&) = delete;
  Meeting& operator*() const { return *meeting_; }
  Meeting* operator->() const { return meeting_; }

 private:
  Meeting* meeting_;
};

inline std::string test_token(char fill = 't') { return std::string(Mesh::kTokenBytes, fill); }

// One rank's side of a test.
class Rank {
 public:
  Rank(int rank, int world, Meeting& meeting) : rank_(rank), world_(world), meeting_(meeting) {}

  int rank() const { return rank_; }
  int world() const { return world_; }
  Meeting& meeting() const { return meeting_; }
  std::atomic<int64_t>& note(size_t index) const { return meeting_.notes[index]; }

  // Each barrier has a number of its own, below 60. `count`: how many ranks take part.
  void barrier(size_t number, int count = 0) const {
    meeting_.arrived[number].fetch_add(1);
    wait_until([&] {
      CHECK_MSG(!meeting_.failed.load(), "another rank failed");
      return meeting_.arrived[number].load() >= (count > 0 ? count : world_);
    });
  }

  // Listener and addresses as the group's store would hand them round.
  Listener listen() const {
    Listener listener;
    std::memcpy(meeting_.addresses[static_cast<size_t>(rank_)].data(), listener.address().c_str(),
                listener.address().size() + 1);
    barrier(63);
    return listener;
  }

  std::vector<std::string> addresses() const {
    std::vector<std::string> all;
    for (int rank = 0; rank < world_; ++rank) {
      all.emplace_back(meeting_.addresses[static_cast<size_t>(rank)].data());
    }
    return all;
  }

  // A mesh made in the ordinary way.
  Mesh connect(const std::string& token = test_token(), int64_t patience_ns = kPatience) const {
    Listener listener = listen();  // first, as it waits until all addresses are known
    return Mesh(rank_, world_, addresses(), token, std::move(listener), now_ns() + patience_ns);
  }

 private:
  int rank_;
  int world_;
  Meeting& meeting_;
};

// The child runs `body` and exits with 0, or with 1 after a failed check or an exception. It exits
// in the ordinary way, so that a leak checker looks at it.
inline pid_t start_process(const std::function<void()>& body) {
  std::fflush(stdout);
  std::fflush(stderr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  int result = 1;
  try {
    body();
    result = 0;
  } catch (const Failure&) {
  } catch (const std::exception& error) {
    std::fprintf(stderr, "process %d: unexpected exception: %s\n", getpid(), error.what());
  }
  std::exit(result);
}

// The exit status as wait() gives it. Kills the process if it takes too long.
inline int finish_process(pid_t pid) {
  const int64_t end = now_ns() + 2 * kPatience;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (now_ns() > end) {
      std::fprintf(stderr, "process %d hangs\n", pid);
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      break;
    }
    sleep_ms(2);
  }
  return status;
}

inline std::vector<pid_t> start_ranks(int world, Meeting& meeting,
                                      const std::function<void(Rank&)>& body) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < world; ++rank) {
    pids.push_back(start_process([&] {
      try {
        Rank self(rank, world, meeting);
        body(self);
      } catch (...) {
        meeting.failed.store(true);
        throw;
      }
    }));
  }
  return pids;
}

// All ranks must succeed.
inline void run_ranks(int world, const std::function<void(Rank&)>& body) {
  const SharedMeeting meeting;
  const std::vector<pid_t> pids = start_ranks(world, *meeting, body);
  std::vector<int> statuses;
  for (const pid_t pid : pids) statuses.push_back(finish_process(pid));
  for (const int status : statuses) CHECK_EQ(status, 0);
}

}  // namespace symmoe::check
