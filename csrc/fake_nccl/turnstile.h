#pragma once

#include <cstdint>
#include <mutex>
#include <set>

namespace symmoe::fake {

// Lets the work of one communicator pass in the order in which the host gave it, on whatever
// streams, as NCCL does.
class Turnstile {
 public:
  uint64_t take_ticket() {
    const std::lock_guard lock(mutex_);
    waiting_.insert(++last_);
    return last_;
  }
  bool first(uint64_t ticket) const {
    const std::lock_guard lock(mutex_);
    return *waiting_.begin() == ticket;
  }
  void give_back(uint64_t ticket) {
    const std::lock_guard lock(mutex_);
    waiting_.erase(ticket);
  }
  bool empty() const {
    const std::lock_guard lock(mutex_);
    return waiting_.empty();
  }

 private:
  mutable std::mutex mutex_;
  std::set<uint64_t> waiting_;
  uint64_t last_ = 0;
};

}  // namespace symmoe::fake
