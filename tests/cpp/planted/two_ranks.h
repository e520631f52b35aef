#pragma once

// The protocol between two threads, for sources that break it in one place. No rank ever sleeps:
// the counts of sleepers would order memory accesses by accident.

#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

#include "channel_ranks.h"

namespace symmoe::check {

constexpr int kPlantedCalls = 200;

// Lets the peer run ahead or behind, differently each time: in lockstep, a rank often looks at the
// flag so late that it has seen the next store as well, which hides the bug.
inline void dawdle() {
  thread_local uint32_t random =
      static_cast<uint32_t>(std::hash<std::thread::id>{}(std::this_thread::get_id()));
  random = random * 1664525 + 1013904223;
  std::this_thread::sleep_for(std::chrono::microseconds(random >> 25));
}

// Runs `body(channel, own rows, peer's rows)` for each of two ranks. Returns the exit status: a
// race is ThreadSanitizer's to report, wrong values are not.
template <typename Body>
int run_two_ranks(Body&& body) {
  const Lines lines(2);
  Rows rows[2];
  PatientWatch watch;
  WaitPolicy policy;
  policy.spin_ns = 3'600'000'000'000;
  return run_threads(2,
                     [&](int rank) {
                       Channel channel = lines.channel(rank, policy, watch);
                       body(channel, rows[rank], rows[1 - rank]);
                     })
             ? 0
             : 1;
}

// Keeps a read that has no other use.
inline void consume(uint64_t value) {
  volatile uint64_t sink = value;
  (void)sink;
}

}  // namespace symmoe::check
