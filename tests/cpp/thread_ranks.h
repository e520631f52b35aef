#pragma once

// A group whose ranks are threads of one process: all ranks see the same memory at the same
// addresses, so that the sanitizers watch what the ranks do to each other.

#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "check.h"
#include "collectives/engine.h"

namespace symmoe::check {

// Runs `body(rank)` on one thread per rank and waits for all of them. False if a check failed or an
// exception escaped on any (which prints it).
inline bool run_threads(int count, const std::function<void(int)>& body) {
  std::atomic<bool> ok = true;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
        return;
      } catch (const Failure&) {
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: unexpected exception: %s\n", rank, error.what());
      }
      ok = false;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ok;
}

// Zeroed, cache-line aligned memory of exactly `bytes`, so that a sanitizer sees the first byte
// beyond it.
inline std::shared_ptr<void> make_memory(size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, bytes == 0 ? 1 : bytes) != 0) std::abort();
  std::memset(memory, 0, bytes);
  return {memory, std::free};
}

// What one rank told another about its windows and the other has not taken in yet.
class Announcements {
 public:
  void put(const Window& window) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(window);
  }
  std::deque<Window> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(waiting_, {});
  }

 private:
  std::mutex mutex_;
  std::deque<Window> waiting_;  // without memory: the window was dropped
};

// One rank's windows on the heap. Like windows between processes, a window of a peer is known only
// once its announcement was taken in, and a dropped one must not be asked for.
class ThreadSource : public WindowSource {
 public:
  using Mailboxes = std::map<std::pair<int, int>, Announcements>;  // (from, to)

  ThreadSource(int rank, int world, Mailboxes& mailboxes)
      : rank_(rank), world_(world), mailboxes_(mailboxes), known_(static_cast<size_t>(world)) {}

  Window create(size_t bytes) override {
    require_peer();
    const size_t limit = limit_bytes.load();
    if (limit != 0 && bytes > limit) {
      throw OutOfMemory("rank " + std::to_string(rank_) + " has no " + std::to_string(bytes) +
                        " bytes");
    }
    Window window;
    window.memory = make_memory(bytes);
    window.base = static_cast<std::byte*>(window.memory.get());
    window.bytes = bytes;
    {
      const std::lock_guard lock(mutex_);
      window.ordinal = ++last_ordinal_;
    }
    announce(window);
    return window;
  }

  void drop(const Window& window) override {
    {
      const std::lock_guard lock(mutex_);
      dropped_.push_back(window.ordinal);
    }
    announce(Window{window.ordinal, nullptr, 0, nullptr});
  }

  const std::byte* address(int rank, uint32_t ordinal) override {
    require_peer();
    for (const int64_t end = now_ns() + 20'000'000'000; now_ns() < end; std::this_thread::yield()) {
      take_in(rank);
      const std::lock_guard lock(mutex_);
      const auto found = known_[static_cast<size_t>(rank)].find(ordinal);
      if (found == known_[static_cast<size_t>(rank)].end()) continue;
      if (found->second.memory == nullptr) {
        throw Error("window " + std::to_string(ordinal) + " of rank " + std::to_string(rank) +
                    " was dropped");
      }
      return found->second.base;
    }
    throw DeadlineExceeded("window " + std::to_string(ordinal) + " of rank " +
                           std::to_string(rank) + " was never announced");
  }

  void refresh() override {
    for (int rank = 0; rank < world_; ++rank) {
      if (rank != rank_) take_in(rank);
    }
  }

  size_t mapped_bytes() const override {
    const std::lock_guard lock(mutex_);
    size_t bytes = 0;
    for (const auto& windows : known_) {
      for (const auto& [ordinal, window] : windows) bytes += window.bytes;
    }
    return bytes;
  }

  std::vector<uint32_t> dropped() const {
    const std::lock_guard lock(mutex_);
    return dropped_;
  }

  std::atomic<int> lost_peer = -1;      // PeerLost from whatever concerns peers
  std::atomic<size_t> limit_bytes = 0;  // larger windows: OutOfMemory; 0: no limit

 private:
  void require_peer() const {
    if (lost_peer >= 0) throw PeerLost("rank " + std::to_string(lost_peer) + " ended");
  }

  void announce(const Window& window) {
    for (int rank = 0; rank < world_; ++rank) {
      if (rank != rank_) mailboxes_.at({rank_, rank}).put(window);
    }
  }

  void take_in(int rank) {
    const std::lock_guard lock(mutex_);
    for (Window& window : mailboxes_.at({rank, rank_}).take()) {
      known_[static_cast<size_t>(rank)][window.ordinal] = std::move(window);
    }
  }

  int rank_;
  int world_;
  Mailboxes& mailboxes_;
  mutable std::mutex mutex_;
  std::vector<std::map<uint32_t, Window>> known_;  // by rank
  std::vector<uint32_t> dropped_;
  uint32_t last_ordinal_ = 0;
};

// Ranks die when a test says so.
class ThreadLiveness : public Liveness {
 public:
  void check(int rank) override {
    if (dead_[static_cast<size_t>(rank)].load()) {
      throw PeerLost("rank " + std::to_string(rank) + " ended");
    }
  }
  void kill(int rank) { dead_[static_cast<size_t>(rank)] = true; }

 private:
  std::array<std::atomic<bool>, 64> dead_{};
};

// Small granules, so that little data grows buffers often; short slices, so that failures are
// noticed soon.
inline EngineConfig test_config() {
  EngineConfig config;
  config.wait.slice_ns = 20'000'000;
  config.wait.deadline_ns = 60'000'000'000;
  config.pool.granularity = 256;
  return config;
}

class ThreadGroup {
 public:
  // `first_epoch`: where the epochs of all calls begin.
  explicit ThreadGroup(int world, const EngineConfig& config = test_config(),
                       uint32_t first_epoch = 0)
      : barrier_(world) {
    std::vector<ControlBlock*> blocks;
    for (int rank = 0; rank < world; ++rank) {
      block_memory_.push_back(make_memory(sizeof(ControlBlock)));
      blocks.push_back(static_cast<ControlBlock*>(block_memory_.back().get()));
      for (auto& lines : blocks.back()->calls) {
        for (FlagLine& line : lines) line.epoch = line.done = first_epoch;
      }
      for (int to = 0; to < world; ++to) {
        mailboxes_.try_emplace({rank, to});
      }
    }
    for (int rank = 0; rank < world; ++rank) {
      sources_.push_back(std::make_unique<ThreadSource>(rank, world, mailboxes_));
      engines_.push_back(
          std::make_unique<Engine>(rank, blocks, sources_.back().get(), &liveness_, config));
    }
    blocks_ = blocks;
  }

  int world() const { return static_cast<int>(engines_.size()); }
  Engine& engine(int rank) { return *engines_[static_cast<size_t>(rank)]; }
  ThreadSource& source(int rank) { return *sources_[static_cast<size_t>(rank)]; }
  ControlBlock& block(int rank) { return *blocks_[static_cast<size_t>(rank)]; }
  ThreadLiveness& liveness() { return liveness_; }

  // All ranks wait for each other here. Orders them for ThreadSanitizer too, so it is for the
  // tests that fail on purpose, not for those that look for races.
  void meet() { barrier_.arrive_and_wait(); }

  // Every rank's thread runs `body`; all must succeed.
  void run(const std::function<void(Engine&)>& body) {
    const bool ok = run_threads(world(), [&](int rank) {
      try {
        body(engine(rank));
      } catch (...) {
        // The other ranks need not wait for the deadline, nor in meet().
        barrier_.arrive_and_drop();
        engine(rank).poison(PoisonNote::Kind::kOther, "the test of this rank failed");
        throw;
      }
    });
    CHECK(ok);
  }

 private:
  std::barrier<> barrier_;
  std::vector<std::shared_ptr<void>> block_memory_;
  std::vector<ControlBlock*> blocks_;
  ThreadSource::Mailboxes mailboxes_;
  ThreadLiveness liveness_;
  std::vector<std::unique_ptr<ThreadSource>> sources_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace symmoe::check
