#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "windows/window.h"

namespace symmoe {

// What a window is for. Each collective kind has its own, so that they can overlap in a lane.
enum class Role : uint8_t { kCombine = 0, kDispatch = 1 };
constexpr int kRoles = 2;

// A lane is one microbatch; lanes never share memory or flags.
constexpr int kMaxLanes = 16;

constexpr const char* name_of(Role role) { return role == Role::kCombine ? "combine" : "dispatch"; }

// Who writes a buffer: the caller, who acquired it, or a copy in front of the collective.
enum class Use : uint8_t { kAcquired = 0, kStage = 1 };
constexpr int kUses = 2;

// Which buffer is meant.
struct Slot {
  Role role = Role::kCombine;
  int lane = 0;
  Use use = Use::kAcquired;
};

// One window in the pool.
struct Buffer : std::enable_shared_from_this<Buffer> {
  Window window;
  Slot slot;
  // Also looked at without the pool's lock or the lane's: by other lanes' threads, whose growth
  // trims the pool, and to refuse a second thread on the lane.
  std::atomic<bool> armed = false;       // acquired, and not reduced since: the caller may write it
  std::atomic<bool> retired = false;     // outgrown; never handed out again
  bool condemned = false;                // about to be given back; under the pool's lock
  std::atomic<bool> pinned = false;      // a captured graph may write it
  std::atomic<uint32_t> last_epoch = 0;  // of its channel: the last call in which peers read it
};

}  // namespace symmoe
