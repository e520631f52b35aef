#include "windows/memfd_source.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "windows/own_windows.h"

namespace symmoe {
namespace {

// Short, because another thread may take in the announcement that this one waits for.
constexpr int64_t kLookAgainNs = 5'000'000;

std::string name_of_window(int rank, uint32_t ordinal) {
  return "window " + std::to_string(ordinal) + " of rank " + std::to_string(rank);
}

}  // namespace

MemfdSource::MemfdSource(Mesh& mesh, int64_t timeout_ns)
    : mesh_(mesh), timeout_ns_(timeout_ns), tables_(static_cast<size_t>(mesh.world())) {}

Window MemfdSource::create(size_t bytes) {
  mesh_.require_usable();
  const std::shared_ptr<SharedMemory> memory = own_windows::registered(
      SharedMemory::create(bytes, "symmoe:window:" + std::to_string(mesh_.rank())));
  const Descriptor descriptor = memory->release_descriptor();
  Window window{0, memory->data(), bytes, memory};
  {
    const std::lock_guard lock(table_mutex_);
    window.ordinal = next_ordinal_++;
    own_table().emplace(window.ordinal, memory);
  }
  try {
    announce({Message::Kind::kNew, window.ordinal, bytes}, descriptor.get());
  } catch (...) {
    const std::lock_guard lock(table_mutex_);
    own_table().erase(window.ordinal);
    throw;  // `window` ends after the lock: nothing is unmapped under it
  }
  return window;
}

void MemfdSource::drop(const Window& window) {
  mesh_.require_usable();
  std::shared_ptr<SharedMemory> dropped;  // unmapped, if this is the last copy, without the lock
  {
    const std::lock_guard lock(table_mutex_);
    const auto found = own_table().find(window.ordinal);
    if (found == own_table().end() || found->second == nullptr) {
      throw InvalidArgument("rank " + std::to_string(mesh_.rank()) + " has no window " +
                            std::to_string(window.ordinal) + " to drop");
    }
    dropped = std::move(found->second);
  }
  announce({Message::Kind::kDrop, window.ordinal, 0}, -1);
}

void MemfdSource::announce(const Message& message, int descriptor) {
  const int64_t deadline_ns = now_ns() + timeout_ns_;
  for (int rank = 0; rank < mesh_.world(); ++rank) {
    if (rank != mesh_.rank())
      mesh_.send(rank, message, descriptor, deadline_ns, [this] { refresh(); });
  }
}

const std::byte* MemfdSource::address(int rank, uint32_t ordinal) {
  if (rank < 0 || rank >= mesh_.world()) {
    throw InvalidArgument("there is no rank " + std::to_string(rank) + " in a world of " +
                          std::to_string(mesh_.world()));
  }
  if (const std::byte* known = find(rank, ordinal)) return known;
  const std::string what = name_of_window(rank, ordinal);
  if (rank == mesh_.rank()) throw InvalidArgument(what + ", the own rank, was never created");

  const int64_t deadline_ns = now_ns() + timeout_ns_;
  for (;;) {
    // Asked before looking: what a rank announced before it ended has arrived by then.
    const bool alive = mesh_.alive(rank);
    take_in(rank);
    if (const std::byte* known = find(rank, ordinal)) return known;
    if (!alive) mesh_.check(rank);
    const int64_t left_ns = deadline_ns - now_ns();
    if (left_ns <= 0) {
      throw DeadlineExceeded("rank " + std::to_string(mesh_.rank()) + " waited " +
                             std::to_string(timeout_ns_ / 1'000'000) +
                             " ms for the announcement of " + what);
    }
    mesh_.wait_for_message(rank, std::min(left_ns, kLookAgainNs));
  }
}

const std::byte* MemfdSource::find(int rank, uint32_t ordinal) const {
  const std::lock_guard lock(table_mutex_);
  const Table& table = tables_[static_cast<size_t>(rank)];
  const auto found = table.find(ordinal);
  if (found == table.end()) return nullptr;
  if (found->second == nullptr) {
    throw Error("rank " + std::to_string(mesh_.rank()) + " asked for window " +
                std::to_string(ordinal) + " of rank " + std::to_string(rank) +
                ", which that rank has dropped");
  }
  return found->second->data();
}

void MemfdSource::refresh() {
  mesh_.require_usable();
  for (int rank = 0; rank < mesh_.world(); ++rank) {
    if (rank != mesh_.rank()) take_in(rank);
  }
}

// The announcement is used up, so a window that cannot be mapped is lost for good: the error has to
// end the group, and says whose window it was.
std::shared_ptr<SharedMemory> MemfdSource::attach(int rank, const Incoming& announced) const {
  try {
    return std::make_shared<SharedMemory>(SharedMemory::attach(
        announced.descriptor.get(), announced.message.bytes, SharedMemory::Access::kRead));
  } catch (const SystemError& error) {
    throw SystemError("rank " + std::to_string(mesh_.rank()) + " cannot map " +
                      name_of_window(rank, announced.message.ordinal) + " (" +
                      std::to_string(announced.message.bytes) + " bytes): " + error.what());
  }
}

void MemfdSource::take_in(int rank) {
  const std::lock_guard intake(intake_mutex_);
  while (const std::optional<Incoming> incoming = mesh_.receive(rank)) {
    const Message& message = incoming->message;
    std::shared_ptr<SharedMemory> memory;  // stays empty for a dropped window
    if (message.kind == Message::Kind::kNew) {
      memory = attach(rank, *incoming);
      mapped_bytes_ += message.bytes;
    } else if (message.kind != Message::Kind::kDrop) {
      throw SystemError("rank " + std::to_string(rank) + " sent rank " +
                        std::to_string(mesh_.rank()) + " an unexpected message of kind " +
                        std::to_string(static_cast<uint32_t>(message.kind)));
    }
    const std::lock_guard lock(table_mutex_);
    std::swap(tables_[static_cast<size_t>(rank)][message.ordinal], memory);
    if (memory != nullptr) mapped_bytes_ -= memory->bytes();
  }
}

}  // namespace symmoe
