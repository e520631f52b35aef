#pragma once

#include <sched.h>

#include <cstdint>
#include <ctime>

#include "base/clock.h"

namespace symmoe::fake {

// How a thread waits for another rank: at first it only lets others run, then it sleeps a little.
class Pace {
 public:
  void pause() {
    if (++pauses_ < kYields) {
      sched_yield();
      return;
    }
    const timespec time{0, kSleepNs};
    nanosleep(&time, nullptr);
  }

  // Now and then true: time to look whether those waited for are still there.
  bool time_to_look() {
    if (pauses_ < kYields) return false;
    const int64_t now = now_ns();
    if (now < next_look_ns_) return false;
    next_look_ns_ = now + kLookEveryNs;
    return true;
  }

 private:
  static constexpr int kYields = 100;
  static constexpr int64_t kSleepNs = 50'000;
  static constexpr int64_t kLookEveryNs = 10'000'000;

  int pauses_ = 0;
  int64_t next_look_ns_ = 0;
};

}  // namespace symmoe::fake
