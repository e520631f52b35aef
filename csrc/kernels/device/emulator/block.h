#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <vector>

#include "kernels/device/emulator/barrier.h"
#include "kernels/device/emulator/fiber.h"
#include "kernels/device/emulator/memory.h"
#include "kernels/device/emulator/shared_memory.h"

namespace symmoe::emulator {

constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024;

// A block of a kernel: its threads are fibers that one real thread runs in turn, each until it has
// to wait. Kept by that thread and used for block after block.
class Block {
 public:
  // The one that this thread runs; null outside of kernels.
  static Block* current();

  // Runs all threads of block `index` to their end.
  void run(const std::function<void()>& kernel, unsigned index, unsigned blocks, unsigned threads);

  // What follows is called on the threads of the block.

  unsigned thread_index() const { return running_; }
  unsigned index() const { return index_; }
  unsigned threads() const { return threads_; }
  unsigned blocks() const { return blocks_; }
  bool is_running() const { return running_ < threads_; }

  void sync(std::source_location where);
  // Also tells whether all threads came with `true`.
  bool sync_and(bool mine, std::source_location where);
  void sync_warp(std::source_location where);

  // The thread's word becomes visible to the warp; the next meeting of the warp makes it so.
  void show(uint64_t value);
  uint64_t shown_by(unsigned lane) const;

  // Called again and again by a thread that waits for other blocks or other devices.
  void spin();
  // The same for one that has a deadline of its own.
  void pause();

  void* shared(const void* site, size_t bytes) { return shared_.variable(site, bytes); }
  Counters& counters() { return counters_; }

 private:
  enum class State : uint8_t { kReady, kWaiting, kDone };
  struct Thread {
    Fiber fiber;
    State state = State::kDone;
    bool spins = false;
    const Barrier* waits_for = nullptr;
    uint64_t shown = 0;
  };

  static void thread_main();

  void begin(unsigned index, unsigned blocks, unsigned threads);
  unsigned choose();
  void meet(Barrier& barrier, unsigned first, unsigned count, const char* what,
            std::source_location where);
  void finish_thread();
  [[noreturn]] void report_stuck() const;
  uint64_t random();

  // Plain arrays, because the thread sanitizer would watch the code of containers for races.
  Thread* thread_[kMaxThreads] = {};
  Barrier warp_[kMaxThreads / kWarp];
  Barrier all_;
  // The last meetings of `all_` to which a thread came with `false`, counted from 1. Two, in turn:
  // a thread may come to the next one before another has left this one.
  unsigned refused_meeting_[2] = {};
  std::vector<std::unique_ptr<Thread>> made_;  // the owner of thread_'s
  SharedMemory shared_;
  Counters counters_;
  const std::function<void()>* kernel_ = nullptr;
  unsigned index_ = 0;
  unsigned blocks_ = 0;
  unsigned threads_ = 0;
  unsigned alive_ = 0;
  unsigned running_ = 0;  // == threads_: none
  unsigned last_ = 0;
  uint64_t random_state_ = 0;  // 0: each in turn
  int64_t last_progress_ns_ = 0;
  char begin_order_ = 0;
  char end_order_ = 0;
};

}  // namespace symmoe::emulator
