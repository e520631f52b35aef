#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace symmoe {

// A thread that looks now and then at what no call waits for: a device that waits for a dead peer
// would wait for ever, and nobody would be told.
class Watchdog {
 public:
  // Throws if something is wrong.
  using Look = std::function<void()>;
  // Called once, from the thread, with what the look threw; no look follows.
  using Bark = std::function<void(const std::string& reason)>;

  Watchdog(int64_t period_ns, Look look, Bark bark);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Ends the thread. Safe to call twice, also from several threads.
  void stop();

 private:
  void watch();

  int64_t period_ns_;
  uint64_t generation_;  // of forks: a child has no such thread
  Look look_;
  Bark bark_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace symmoe
