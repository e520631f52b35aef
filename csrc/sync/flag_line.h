#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace symmoe {

// What one rank tells its peers about one channel (a role and lane). Lives in memory that all ranks
// map. Only its owner writes it, but for the two waiter counts.
//
// The plain fields belong to the epoch: they are written before `epoch` is stored (release) and
// stay until every peer has set `done` to that epoch, because the next publish waits for that.
struct alignas(64) FlagLine {
  static constexpr size_t kTextBytes = 448;

  std::atomic<uint32_t> epoch;          // calls entered
  std::atomic<uint32_t> epoch_waiters;  // peers asleep on `epoch`
  std::atomic<uint32_t> done;           // calls whose reading of peers' windows is finished
  std::atomic<uint32_t> done_waiters;   // peers asleep on `done`
  std::atomic<uint32_t> cpu;            // processor the owner ran on when it last published
  uint32_t ordinal;                     // window that holds this epoch's rows; see Posting
  uint64_t offset;                      // where in the window they begin, bytes
  uint64_t signature;                   // hash of `text`: ranks compare it in every call
  uint64_t routing;                     // hash of the rows' masks, compared as well; 0 without
  char reserved[16];
  char text[kTextBytes];  // the call in words, for the error message when signatures differ
};

static_assert(sizeof(FlagLine) == 512);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// What a rank publishes with an epoch.
struct Posting {
  // In place of a window ordinal: the rank has no window for this call. All ranks see it and take
  // the fallback together.
  static constexpr uint32_t kNoWindow = 0;
  // Likewise: there is nothing to read from this rank.
  static constexpr uint32_t kNothing = UINT32_MAX;

  uint32_t ordinal = kNoWindow;
  uint64_t offset = 0;
  uint64_t signature = 0;
  std::string_view text;  // cut to FlagLine::kTextBytes - 1 characters
  uint64_t routing = 0;
};

}  // namespace symmoe
