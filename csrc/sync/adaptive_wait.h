#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "sync/flag_line.h"

namespace symmoe {

// How a rank spends the time until a peer's flag arrives.
struct WaitPolicy {
  int64_t spin_ns = 50'000;               // then sleep; a futex wake-up costs about 30 us
  int64_t yield_ns = 2'000;               // give the processor away this often while spinning
  int64_t slice_ns = 100'000'000;         // wake this often to look whether waiting makes sense
  int64_t deadline_ns = 300'000'000'000;  // then DeadlineExceeded
};

// Asked every slice by a rank that waits for `rank`; throws if `rank` can no longer come. `context`
// says who waits, in which call and for which epoch: the message begins with it.
class Watch {
 public:
  virtual ~Watch() = default;
  virtual void look(int rank, int64_t waited_ns, const std::string& context) = 0;
};

// The call on whose behalf a rank waits, in words that outlive the wait.
struct CallName {
  const char* operation;  // "reduce_scatter"
  const char* channel;    // "combine, lane 0"
};

// Which of the two counters of a flag line is waited for.
enum class Counter { kEpoch, kDone };

// True once the counter has reached `target` (wrapping 32-bit epochs).
inline bool reached(uint32_t value, uint32_t target) {
  return static_cast<int32_t>(value - target) >= 0;
}

// The processor this thread runs on.
uint32_t current_cpu();

// Returns when `counter` of every line in `lines[0..ranks)` except `self` has reached `target`
// (acquire). `call` is named in errors. Throws DeadlineExceeded, or what `watch` throws.
void adaptive_wait(FlagLine* const* lines, int ranks, int self, Counter counter, uint32_t target,
                   const WaitPolicy& policy, Watch& watch, const CallName& call);

// Wakes the peers asleep on `counter` of `line`; call after storing it.
void wake_waiters(FlagLine& line, Counter counter);

}  // namespace symmoe
