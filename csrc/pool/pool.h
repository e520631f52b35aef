#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pool/buffer.h"
#include "windows/window.h"

namespace symmoe {

struct PoolConfig {
  size_t granularity = size_t{2} << 20;
  size_t max_buffer_bytes = 0;  // cap of one buffer; 0: none
  // Whether growth gives back by itself what nothing needs any more. Not where all ranks have to
  // agree on it first.
  bool trims_on_growth = true;
};

// Bytes of this rank's windows. "At rest" (nothing pinned, no views of retired buffers, after a
// trim) live_bytes is at most twice the largest request plus one granule per slot.
struct PoolStats {
  size_t live_bytes = 0;     // current buffers
  size_t stage_bytes = 0;    // the part of live_bytes that only staging uses
  size_t retired_bytes = 0;  // outgrown, not given back yet
  size_t view_bytes = 0;     // the part of retired_bytes that live views hold
  size_t viewed_bytes = 0;   // live or retired, held by views
  size_t pinned_bytes = 0;   // live or retired, held for graphs
  size_t peak_bytes = 0;     // largest live + retired so far
  size_t growths = 0;        // buffers that replaced a smaller one
  size_t buffers = 0;

  // Of two pools together; peaks are added, as if they had been at the same time.
  PoolStats& operator+=(const PoolStats& other);
};

// The buffers of one rank. A shared_ptr outside the pool (a tensor view) keeps a buffer's memory.
//
// Thread-safe, and no query waits for memory: windows are made and dropped outside the lock, which
// is held for moments only. What replaces a slot's buffer (get, revert) is for one thread per slot
// at a time; the engine sees to that by taking the slot's endpoint.
class Pool {
 public:
  // Whether all peers have finished reading what a buffer last published.
  using Settled = std::function<bool(const Buffer&)>;

  Pool(WindowSource* source, PoolConfig config, Settled settled);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // The reason why no buffer of `bytes` can be had, whatever its slot holds now; nullopt if one
  // can. Depends on the configuration and on agreed limits only, so it is equal on all ranks.
  std::optional<std::string> refuses(size_t bytes) const;

  // The slot's current buffer, at least `bytes` large: grown if need be. Throws OutOfMemory and
  // leaves everything as it was; the caller has asked refuses() before.
  std::shared_ptr<Buffer> get(const Slot& slot, size_t bytes);

  std::shared_ptr<Buffer> current(const Slot& slot) const;

  // Undoes the growth that led to `buffer`, which no peer has read yet, in favour of what current()
  // gave before (may be null). The window is dropped unless somebody else holds it; then it is
  // retired like an outgrown one.
  void revert(std::shared_ptr<Buffer> buffer, const std::shared_ptr<Buffer>& previous);

  // From now on no slot grows beyond `bytes` (agreed by all ranks after a failed growth).
  void limit(size_t bytes, const std::string& reason);

  // Gives back retired buffers that nothing holds any more, in ordinal order.
  void trim();
  // The two halves of trim, for ranks that have to agree in between. condemn: the ordinals of what
  // could be given back, in order; from then on nobody gets a reference to these. release: gives
  // back, in ordinal order, those of the condemned ones that were agreed on; the others stay.
  std::vector<uint32_t> condemn();
  void release(const std::vector<uint32_t>& condemned, const std::vector<uint32_t>& agreed);

  // Takes every slot's buffer out of use, as if it had been outgrown. For one thread at a time,
  // with no slot in use.
  void retire_all();

  // The slots that have a buffer, and its bytes, in ordinal order.
  std::vector<std::pair<Slot, size_t>> sizes() const;

  void unpin_all();

  // Buffer that contains `address`, with the offset of it; null if none.
  std::shared_ptr<Buffer> find(const std::byte* address, size_t* offset) const;
  bool overlaps(const std::byte* begin, size_t bytes) const;

  PoolStats stats() const;

 private:
  static size_t index(const Slot& slot);

  size_t capacity_for(size_t bytes, size_t old_bytes) const;
  std::shared_ptr<Buffer> shared_locked(const Buffer* buffer) const;
  void insert_locked(const std::shared_ptr<Buffer>& buffer);
  std::shared_ptr<Buffer> take(uint32_t ordinal);

  WindowSource* source_;
  PoolConfig config_;
  Settled settled_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Buffer>> buffers_;  // in ordinal order: current and retired ones
  std::array<Buffer*, size_t{kRoles} * kMaxLanes * kUses> current_{};  // by slot; null: none yet
  std::optional<size_t> limit_bytes_;
  std::string limit_reason_;
  size_t peak_bytes_ = 0;
  size_t growths_ = 0;
};

}  // namespace symmoe
