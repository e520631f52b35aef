#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "fake_nccl/allocation.h"
#include "fake_nccl/presence.h"
#include "fake_nccl/shared_memory.h"

namespace symmoe::fake {

// Memory that every rank of a communicator has mapped, seen from one rank.
struct Window {
  uint64_t ordinal = 0;  // the same on all ranks
  std::shared_ptr<Allocation> allocation;
  std::byte* base = nullptr;
  size_t bytes = 0;
  std::vector<std::byte*> peers;  // by rank: where its part is mapped here
  std::vector<SharedMemory> mappings;
  std::atomic<bool> closed = false;  // a graph may still name it
  std::atomic<int> queued_work = 0;  // work that has it as its send window and has not run yet

  bool contains(const void* address) const {
    const auto* const byte = static_cast<const std::byte*>(address);
    return byte >= base && byte < base + bytes;
  }
  size_t offset_of(const void* address) const {
    return static_cast<size_t>(static_cast<const std::byte*>(address) - base);
  }
};

// The windows of one rank's communicator. Registration is for one thread at a time.
class Windows {
 public:
  explicit Windows(Presence& presence) : presence_(presence) {}

  // Collective. Throws Refusal.
  std::shared_ptr<Window> add(void* memory, size_t bytes, int flags);
  // Local.
  void remove(const Window* window);
  // The peers have this window, but this rank has none.
  void forget(const Window* window);
  // All of them, at the end of an aborted communicator.
  void clear();

  std::shared_ptr<Window> containing(const void* address) const;
  size_t count() const;

 private:
  std::shared_ptr<Window> meet_peers(const std::shared_ptr<Allocation>& allocation, void* memory,
                                     size_t bytes);
  void map_peers(Window& window);
  std::shared_ptr<Window> take(const Window* window);

  Presence& presence_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Window>> windows_;
  uint64_t last_ordinal_ = 0;
  uint64_t history_ = 1;  // of deregistrations; 0: this rank missed one
};

}  // namespace symmoe::fake
