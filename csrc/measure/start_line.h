#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace symmoe::measure {

// A barrier between processes, for timing: all ranks leave it as close together as the machine can.
//
// The page is any file or memfd that every rank opens; it must be zero before the first use.
class StartLine {
 public:
  static size_t bytes_for(int ranks);

  // deadline_ns: how long a rank waits for the others before it throws DeadlineExceeded.
  StartLine(const std::string& path, int ranks, int rank, int64_t deadline_ns);
  ~StartLine();
  StartLine(const StartLine&) = delete;
  StartLine& operator=(const StartLine&) = delete;

  // Waits until all ranks are here, however long the slowest takes, then lets them go together.
  // Returns the time (now_ns) at which this rank was let go.
  int64_t start();

  // One round without sleeping: what the barrier itself costs when all ranks arrive at once.
  void cross();

  int ranks() const { return ranks_; }

 private:
  struct Mark;

  void arrive();
  bool all_arrived(bool& peer_on_this_cpu, int& missing) const;
  void wait(bool may_sleep);
  void sleep_until_arrival(int missing);

  Mark* marks_ = nullptr;
  int ranks_;
  int rank_;
  bool crowded_;  // more ranks than processors
  uint32_t epoch_ = 0;
  int64_t deadline_ns_;
};

}  // namespace symmoe::measure
