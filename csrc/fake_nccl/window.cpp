#include "fake_nccl/window.h"

#include <string>

#include "fake_nccl/log.h"
#include "fake_nccl/posting.h"
#include "fake_nccl/refusal.h"

namespace symmoe::fake {
namespace {

constexpr uint64_t kHistoryFactor = 1'000'003;

std::shared_ptr<Allocation> require_registrable(const void* memory, size_t bytes, int flags) {
  const std::shared_ptr<Allocation> allocation = find_allocation(memory);
  if (allocation == nullptr) {
    throw Refusal{kNcclInvalidArgument, "the memory is not from ncclMemAlloc"};
  }
  const auto offset =
      static_cast<size_t>(static_cast<const std::byte*>(memory) - allocation->base());
  if (offset % kNcclWindowAlignment != 0) {
    throw Refusal{kNcclInvalidArgument,
                  "the window starts " + std::to_string(offset) +
                      " bytes into its allocation, which is no multiple of 4096"};
  }
  if (bytes == 0 || bytes > allocation->bytes() - offset) {
    throw Refusal{kNcclInvalidArgument, "a window of " + std::to_string(bytes) +
                                            " bytes does not fit into an allocation of " +
                                            std::to_string(allocation->bytes())};
  }
  if (flags != kNcclWindowSymmetric) {
    throw Refusal{kNcclInvalidArgument,
                  "flags " + std::to_string(flags) + ", the fake has symmetric windows only"};
  }
  return allocation;
}

}  // namespace

std::shared_ptr<Window> Windows::add(void* memory, size_t bytes, int flags) {
  const std::shared_ptr<Allocation> allocation = require_registrable(memory, bytes, flags);
  if (allocation->registered.exchange(true)) {
    throw Refusal{kNcclInvalidUsage, "the memory is registered already"};
  }
  try {
    std::shared_ptr<Window> window = meet_peers(allocation, memory, bytes);
    const std::lock_guard lock(mutex_);
    windows_.push_back(window);
    return window;
  } catch (...) {
    allocation->registered = false;
    throw;
  }
}

std::shared_ptr<Window> Windows::meet_peers(const std::shared_ptr<Allocation>& allocation,
                                            void* memory, size_t bytes) {
  const auto window = std::make_shared<Window>();
  window->ordinal = ++last_ordinal_;
  window->allocation = allocation;
  window->base = static_cast<std::byte*>(memory);
  window->bytes = bytes;

  Posting posting = new_posting("ncclCommWindowRegister");
  posting.count = bytes;
  posting.descriptor = allocation->memory.descriptor();
  posting.address = reinterpret_cast<uint64_t>(memory);
  posting.allocation_bytes = allocation->bytes();
  posting.allocation_offset = static_cast<uint64_t>(window->base - allocation->base());
  {
    const std::lock_guard lock(mutex_);
    posting.deregistered = history_;
  }
  presence_.require_working();
  presence_.meet(&Member::host, posting);
  presence_.require_agreement(&Member::host);
  try {
    map_peers(*window);
  } catch (const Refusal& refusal) {
    presence_.fail(refusal.code, "rank " + std::to_string(presence_.rank()) +
                                     " cannot map a peer's window: " + refusal.text);
    throw;
  }
  // Nobody closes a descriptor before everybody has it mapped.
  presence_.meet(&Member::host);
  return window;
}

// Ranks of one process see each other's memory at its own address, where a sanitizer sees what they
// do to each other.
void Windows::map_peers(Window& window) {
  const int32_t own_pid = presence_.member(presence_.rank()).process.pid;
  for (int rank = 0; rank < presence_.world(); ++rank) {
    const Posting& peer = presence_.posting(&Member::host, rank);
    const int32_t pid = presence_.member(rank).process.pid;
    if (pid == own_pid) {
      window.peers.push_back(reinterpret_cast<std::byte*>(peer.address));
      continue;
    }
    window.mappings.push_back(SharedMemory::attach(pid, peer.descriptor, peer.allocation_bytes));
    window.peers.push_back(window.mappings.back().data() + peer.allocation_offset);
  }
}

std::shared_ptr<Window> Windows::take(const Window* window) {
  const std::lock_guard lock(mutex_);
  for (auto found = windows_.begin(); found != windows_.end(); ++found) {
    if (found->get() != window) continue;
    std::shared_ptr<Window> taken = *found;
    if (const int queued = taken->queued_work; queued > 0) {
      const std::string text = "window " + std::to_string(window->ordinal) + " of rank " +
                               std::to_string(presence_.rank()) + " is to be deregistered while " +
                               std::to_string(queued) + " queued operations read it";
      log_misuse(text);
      throw Refusal{kNcclInvalidUsage, text};
    }
    windows_.erase(found);
    return taken;
  }
  throw Refusal{kNcclInvalidArgument, "no such window in this communicator"};
}

void Windows::remove(const Window* window) {
  const std::shared_ptr<Window> taken = take(window);
  taken->closed = true;
  taken->mappings.clear();
  taken->allocation->registered = false;
  const std::lock_guard lock(mutex_);
  history_ = history_ == 0 ? 0 : history_ * kHistoryFactor + taken->ordinal;
}

void Windows::forget(const Window* window) {
  remove(window);
  const std::lock_guard lock(mutex_);
  history_ = 0;
}

void Windows::clear() {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Window>& window : windows_) {
    window->closed = true;
    window->mappings.clear();
    window->allocation->registered = false;
  }
  windows_.clear();
}

std::shared_ptr<Window> Windows::containing(const void* address) const {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Window>& window : windows_) {
    if (window->contains(address)) return window;
  }
  return nullptr;
}

size_t Windows::count() const {
  const std::lock_guard lock(mutex_);
  return windows_.size();
}

}  // namespace symmoe::fake
