#include "windows/peer_windows.h"

#include <exception>
#include <utility>

#include "base/error.h"

namespace symmoe {
namespace {

size_t pages_of(const PeerLayout& layout) {
  return static_cast<size_t>(layout.roles) * static_cast<size_t>(layout.lanes);
}

}  // namespace

PeerWindows::PeerWindows(std::shared_ptr<Device> device, WindowSource& source, Agreement& agreement,
                         int rank, int world, const PeerLayout& layout)
    : device_(std::move(device)),
      source_(source),
      agreement_(agreement),
      rank_(rank),
      world_(world),
      layout_(layout),
      rows_(layout.ordinals) {}

void PeerWindows::start(const std::string& refusal) {
  const RelaxedCapture relaxed(*device_);
  std::string own = refusal;
  if (own.empty() && world_ > layout_.max_ranks) {
    own = "own kernels serve " + std::to_string(layout_.max_ranks) + " ranks, not " +
          std::to_string(world_);
  }
  const std::string refusals = agree(agreement_, rank_, "own kernels", own).failures;
  if (!refusals.empty()) return settle(refusals);
  try {
    signals_ = source_.create(pages_of(layout_) * layout_.page_bytes);
  } catch (const OutOfMemory& error) {  // these two are met by all ranks alike
    return settle(error.what());
  } catch (const Unavailable& error) {
    return settle(error.what());
  }

  std::string failure;
  try {
    make_tables();
  } catch (const std::exception& error) {  // peers wait for the words, whatever it was
    failure = error.what();
    finish_queued();
  }
  // Also: from here on the signal pages of all ranks are clear.
  const std::string failures = agree(agreement_, rank_, "own kernels ready", failure).failures;
  if (failures.empty()) return settle("");
  windows_table_ = DeviceMemory();
  pages_table_ = DeviceMemory();
  source_.drop(std::exchange(signals_, Window()));
  settle(failures);
}

void PeerWindows::settle(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  refusal_ = reason;
}

std::string PeerWindows::refusal() const {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

const void* const* PeerWindows::windows() const {
  return static_cast<const void* const*>(windows_table_.get());
}

void* const* PeerWindows::pages(int role, int lane) const {
  if (role < 0 || role >= layout_.roles || lane < 0 || lane >= layout_.lanes) {
    throw InvalidArgument("rank " + std::to_string(rank_) + " has no signal page of role " +
                          std::to_string(role) + ", lane " + std::to_string(lane));
  }
  if (pages_table_.get() == nullptr) return nullptr;
  const auto page =
      static_cast<size_t>(role) * static_cast<size_t>(layout_.lanes) + static_cast<size_t>(lane);
  return static_cast<void* const*>(pages_table_.get()) + page * static_cast<size_t>(world_);
}

// Nothing of what was queued before a failure uses memory that is about to go.
void PeerWindows::finish_queued() noexcept {
  try {
    if (stream_ != nullptr) stream_->synchronize();
  } catch (const Error&) {
    // The device does nothing any more.
  }
}

// Local, with the signal window made on all ranks.
void PeerWindows::make_tables() {
  stream_ = std::make_unique<Stream>(device_);
  const auto ranks = static_cast<size_t>(world_);
  windows_table_ = DeviceMemory(device_, layout_.ordinals * ranks * sizeof(void*));
  pages_table_ = DeviceMemory(device_, pages_of(layout_) * ranks * sizeof(void*));
  device_->fill(windows_table_.get(), 0, windows_table_.size(), stream_->handle());
  device_->fill(signals_.base, 0, signals_.bytes, stream_->handle());

  std::vector<const std::byte*> pages;
  const std::vector<const std::byte*> bases = addresses_of(signals_);
  for (size_t page = 0; page < pages_of(layout_); ++page) {
    for (const std::byte* const base : bases) pages.push_back(base + page * layout_.page_bytes);
  }
  write(pages_table_.get(), pages);
}

std::vector<const std::byte*> PeerWindows::addresses_of(const Window& window) {
  std::vector<const std::byte*> bases;
  for (int rank = 0; rank < world_; ++rank) {
    bases.push_back(rank == rank_ ? window.base : source_.address(rank, window.ordinal));
  }
  return bases;
}

// The caller has relaxed the thread's capture mode.
void PeerWindows::write(void* table, const std::vector<const std::byte*>& addresses) {
  device_->copy(table, static_cast<const void*>(addresses.data()), addresses.size() * sizeof(void*),
                stream_->handle());
  stream_->synchronize();
}

void PeerWindows::write_row(uint32_t ordinal, const std::vector<const std::byte*>& bases) {
  const size_t row = ordinal % layout_.ordinals * static_cast<size_t>(world_) * sizeof(void*);
  write(static_cast<std::byte*>(windows_table_.get()) + row, bases);
}

Window PeerWindows::create(size_t bytes) {
  if (!refusal().empty()) return source_.create(bytes);
  const RelaxedCapture relaxed(*device_);
  Window window = source_.create(bytes);
  const std::string name = "window ordinal=" + std::to_string(window.ordinal);
  {
    const std::lock_guard lock(mutex_);
    if (const uint32_t taken = row_of(window.ordinal).ordinal; taken != 0) {
      // Known to all ranks alike: they make and drop the same windows.
      source_.drop(window);
      throw OutOfMemory("rank " + std::to_string(rank_) + ": " + name +
                        " needs the place that window " + std::to_string(taken) +
                        " still has; windows that live at the same time are at most " +
                        std::to_string(layout_.ordinals) + " ordinals apart");
    }
  }
  std::vector<const std::byte*> bases;
  std::string failure;
  try {
    bases = addresses_of(window);
    write_row(window.ordinal, bases);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const std::string failures = agree(agreement_, rank_, name + " reached", failure).failures;
  if (!failures.empty()) {
    settle(failures);
    return window;
  }
  const std::lock_guard lock(mutex_);
  row_of(window.ordinal) = {window.ordinal, std::move(bases)};
  return window;
}

void PeerWindows::drop(const Window& window) {
  bool known = false;
  {
    const std::lock_guard lock(mutex_);
    Row& row = row_of(window.ordinal);
    known = row.ordinal == window.ordinal;
    if (known) row = {};
  }
  if (known) {
    try {
      const RelaxedCapture relaxed(*device_);
      write_row(window.ordinal, std::vector<const std::byte*>(static_cast<size_t>(world_)));
    } catch (const Error&) {
      // The device does nothing any more, and so reads no row.
    }
  }
  source_.drop(window);
}

const std::byte* PeerWindows::address(int rank, uint32_t ordinal) {
  {
    const std::lock_guard lock(mutex_);
    const Row& row = row_of(ordinal);
    if (row.ordinal == ordinal && rank >= 0 && rank < world_) {
      return row.bases[static_cast<size_t>(rank)];
    }
  }
  return source_.address(rank, ordinal);
}

}  // namespace symmoe
