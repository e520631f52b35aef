#include "pool/pool.h"

#include <algorithm>
#include <utility>

namespace symmoe {
namespace {

// An outgrown buffer is replaced by one at least this many times as large.
constexpr size_t kGrowthFactor = 2;

// References that a buffer at rest has: the pool's own.
constexpr long kOwnReferences = 1;

// Whether nobody but the pool has it. The caller holds the pool's lock, so nobody new can get it.
bool is_at_rest(const std::shared_ptr<Buffer>& buffer) {
  if (buffer.use_count() > kOwnReferences) return false;
  // use_count() orders nothing, but giving a reference back does: whatever the last holder did
  // before it let go (noting a call's epoch) has happened for this thread from here on.
  std::shared_ptr<Buffer>(buffer).reset();
  return true;
}

size_t round_up(size_t bytes, size_t granularity) {
  return (bytes + granularity - 1) / granularity * granularity;
}

}  // namespace

PoolStats& PoolStats::operator+=(const PoolStats& other) {
  live_bytes += other.live_bytes;
  stage_bytes += other.stage_bytes;
  retired_bytes += other.retired_bytes;
  view_bytes += other.view_bytes;
  viewed_bytes += other.viewed_bytes;
  pinned_bytes += other.pinned_bytes;
  peak_bytes += other.peak_bytes;
  growths += other.growths;
  buffers += other.buffers;
  return *this;
}

Pool::Pool(WindowSource* source, PoolConfig config, Settled settled)
    : source_(source), config_(config), settled_(std::move(settled)) {}

// Only forgets: views that are still alive keep their memory (Window::memory).
Pool::~Pool() = default;

size_t Pool::index(const Slot& slot) {
  return (static_cast<size_t>(slot.role) * kMaxLanes + static_cast<size_t>(slot.lane)) * kUses +
         static_cast<size_t>(slot.use);
}

std::optional<std::string> Pool::refuses(size_t bytes) const {
  if (config_.max_buffer_bytes != 0 && bytes > config_.max_buffer_bytes) {
    return std::to_string(bytes) +
           " bytes exceed max_buffer_bytes=" + std::to_string(config_.max_buffer_bytes);
  }
  const std::lock_guard lock(mutex_);
  if (limit_bytes_ && bytes > *limit_bytes_) return limit_reason_;
  return std::nullopt;
}

size_t Pool::capacity_for(size_t bytes, size_t old_bytes) const {
  size_t capacity = round_up(std::max(bytes, kGrowthFactor * old_bytes), config_.granularity);
  // The cap binds the headroom, never the request itself, which refuses() has let pass.
  if (config_.max_buffer_bytes != 0) capacity = std::min(capacity, config_.max_buffer_bytes);
  if (limit_bytes_) capacity = std::min(capacity, *limit_bytes_);
  return std::max(capacity, bytes);
}

std::shared_ptr<Buffer> Pool::get(const Slot& slot, size_t bytes) {
  size_t capacity = 0;
  {
    const std::lock_guard lock(mutex_);
    const Buffer* const current = current_[index(slot)];
    if (current != nullptr && current->window.bytes >= bytes) return shared_locked(current);
    capacity = capacity_for(bytes, current == nullptr ? 0 : current->window.bytes);
  }
  if (config_.trims_on_growth) trim();
  auto grown = std::make_shared<Buffer>();
  grown->slot = slot;
  grown->window = source_->create(capacity);

  const std::lock_guard lock(mutex_);
  insert_locked(grown);
  Buffer*& current = current_[index(slot)];
  if (current != nullptr) {
    current->retired = true;
    ++growths_;
  }
  current = grown.get();
  return grown;
}

void Pool::insert_locked(const std::shared_ptr<Buffer>& buffer) {
  // Another slot's window may have been made later and be here already.
  const auto later = std::find_if(buffers_.begin(), buffers_.end(), [&](const auto& other) {
    return other->window.ordinal > buffer->window.ordinal;
  });
  buffers_.insert(later, buffer);
  size_t held = 0;
  for (const auto& each : buffers_) held += each->window.bytes;
  peak_bytes_ = std::max(peak_bytes_, held);
}

std::shared_ptr<Buffer> Pool::current(const Slot& slot) const {
  const std::lock_guard lock(mutex_);
  return shared_locked(current_[index(slot)]);
}

std::shared_ptr<Buffer> Pool::shared_locked(const Buffer* buffer) const {
  const auto found = std::find_if(buffers_.begin(), buffers_.end(),
                                  [&](const auto& held) { return held.get() == buffer; });
  return found == buffers_.end() ? nullptr : *found;
}

void Pool::revert(std::shared_ptr<Buffer> buffer, const std::shared_ptr<Buffer>& previous) {
  if (buffer == previous) return;
  {
    const std::lock_guard lock(mutex_);
    current_[index(buffer->slot)] = previous.get();
    if (previous != nullptr) {
      previous->retired = false;
      --growths_;
    }
    buffer->retired = true;
    const auto own = std::find(buffers_.begin(), buffers_.end(), buffer);
    buffer.reset();
    if (!is_at_rest(*own)) return;
    buffer = std::move(*own);
    buffers_.erase(own);
  }
  source_->drop(buffer->window);
}

void Pool::limit(size_t bytes, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (limit_bytes_ && *limit_bytes_ <= bytes) return;  // a limit is never raised
  limit_bytes_ = bytes;
  limit_reason_ = reason;
}

std::vector<uint32_t> Pool::condemn() {
  const std::lock_guard lock(mutex_);
  std::vector<uint32_t> ordinals;
  for (const auto& buffer : buffers_) {
    if (!buffer->retired || buffer->pinned || buffer->condemned) continue;
    if (!is_at_rest(buffer) || !settled_(*buffer)) continue;
    buffer->condemned = true;
    ordinals.push_back(buffer->window.ordinal);
  }
  return ordinals;
}

void Pool::release(const std::vector<uint32_t>& condemned, const std::vector<uint32_t>& agreed) {
  for (const uint32_t ordinal : condemned) {
    const bool goes = std::find(agreed.begin(), agreed.end(), ordinal) != agreed.end();
    const std::shared_ptr<Buffer> taken = goes ? take(ordinal) : nullptr;
    if (taken != nullptr) source_->drop(taken->window);  // forgotten by now: it may throw
  }
  const std::lock_guard lock(mutex_);
  for (const auto& buffer : buffers_) {
    const uint32_t ordinal = buffer->window.ordinal;
    const bool mine = std::find(condemned.begin(), condemned.end(), ordinal) != condemned.end();
    if (mine) buffer->condemned = false;
  }
}

// The pool forgets it.
std::shared_ptr<Buffer> Pool::take(uint32_t ordinal) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(buffers_.begin(), buffers_.end(), [&](const auto& buffer) {
    return buffer->window.ordinal == ordinal;
  });
  if (found == buffers_.end()) return nullptr;
  std::shared_ptr<Buffer> taken = std::move(*found);
  buffers_.erase(found);
  return taken;
}

void Pool::trim() {
  const std::vector<uint32_t> condemned = condemn();
  release(condemned, condemned);
}

void Pool::retire_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& buffer : buffers_) buffer->retired = true;
  current_.fill(nullptr);
}

std::vector<std::pair<Slot, size_t>> Pool::sizes() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<Slot, size_t>> sizes;
  for (const auto& buffer : buffers_) {
    if (!buffer->retired) sizes.emplace_back(buffer->slot, buffer->window.bytes);
  }
  return sizes;
}

void Pool::unpin_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& buffer : buffers_) buffer->pinned = false;
}

std::shared_ptr<Buffer> Pool::find(const std::byte* address, size_t* offset) const {
  const std::lock_guard lock(mutex_);
  for (const auto& buffer : buffers_) {
    const Window& window = buffer->window;
    if (buffer->condemned) continue;  // there is no view of it
    if (address < window.base || address >= window.base + window.bytes) continue;
    *offset = static_cast<size_t>(address - window.base);
    return buffer;
  }
  return nullptr;
}

bool Pool::overlaps(const std::byte* begin, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(buffers_.begin(), buffers_.end(), [&](const auto& buffer) {
    const Window& window = buffer->window;
    return begin < window.base + window.bytes && window.base < begin + bytes;
  });
}

PoolStats Pool::stats() const {
  const std::lock_guard lock(mutex_);
  PoolStats stats;
  stats.peak_bytes = peak_bytes_;
  stats.growths = growths_;
  stats.buffers = buffers_.size();
  for (const auto& buffer : buffers_) {
    const size_t bytes = buffer->window.bytes;
    if (buffer->pinned) stats.pinned_bytes += bytes;
    if (buffer.use_count() > kOwnReferences) stats.viewed_bytes += bytes;
    if (buffer->retired) {
      stats.retired_bytes += bytes;
      if (buffer.use_count() > kOwnReferences) stats.view_bytes += bytes;
    } else {
      stats.live_bytes += bytes;
      if (buffer->slot.use == Use::kStage) stats.stage_bytes += bytes;
    }
  }
  return stats;
}

}  // namespace symmoe
