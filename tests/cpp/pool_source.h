#pragma once

// Windows for tests of the pool alone: plain memory, and a record of what the pool did with it.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "pool/pool.h"
#include "thread_ranks.h"
#include "windows/window.h"

namespace symmoe::check {

class RecordingSource : public WindowSource {
 public:
  Window create(size_t bytes) override {
    if (while_busy) while_busy();
    const std::lock_guard lock(mutex_);
    if (fail_next) {
      fail_next = false;
      throw OutOfMemory("no " + std::to_string(bytes) + " bytes");
    }
    Window window{++last_ordinal_, nullptr, bytes, nullptr};
    // Some properties only count bytes; they spare themselves the memory.
    if (with_memory) window.memory = make_memory(bytes);
    window.base = with_memory ? static_cast<std::byte*>(window.memory.get())
                              : reinterpret_cast<std::byte*>(uintptr_t{window.ordinal} << 40);
    live_[window.ordinal] = bytes;
    held_bytes += bytes;
    return window;
  }

  void drop(const Window& window) override {
    if (while_busy) while_busy();
    const std::lock_guard lock(mutex_);
    if (throw_on_drop == window.ordinal) throw PeerLost("rank 1 ended");
    CHECK_EQ(live_.erase(window.ordinal), size_t{1});
    held_bytes -= window.bytes;
    dropped.push_back(window.ordinal);
  }

  const std::byte* address(int, uint32_t) override { fail(__FILE__, __LINE__, "not the pool's"); }
  void refresh() override { fail(__FILE__, __LINE__, "not the pool's"); }
  size_t mapped_bytes() const override { return 0; }

  std::function<void()> while_busy;  // called in the middle of create and drop
  bool with_memory = true;
  bool fail_next = false;
  uint32_t throw_on_drop = 0;  // ordinal
  std::vector<uint32_t> dropped;
  size_t held_bytes = 0;

 private:
  std::mutex mutex_;
  uint32_t last_ordinal_ = 0;
  std::map<uint32_t, size_t> live_;
};

// A pool whose peers have read everything, unless a test says otherwise.
struct TestPool {
  explicit TestPool(const PoolConfig& config = {.granularity = 100, .max_buffer_bytes = 0})
      : pool(&source, config, [this](const Buffer& buffer) { return settled(buffer); }) {}

  RecordingSource source;
  std::function<bool(const Buffer&)> settled = [](const Buffer&) { return true; };
  Pool pool;
};

inline Slot slot(Role role = Role::kCombine, int lane = 0, Use use = Use::kAcquired) {
  return {role, lane, use};
}

}  // namespace symmoe::check
