#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fake_nccl/communicator.h"
#include "fake_nccl/operation.h"

namespace symmoe::fake {

// What one call, or one group of calls, queues on a stream for one communicator. Part of a graph it
// runs at each replay.
class Work {
 public:
  Work(std::shared_ptr<Communicator> communicator, std::vector<Operation> operations,
       bool captured);
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  const std::vector<Operation>& operations() const { return operations_; }
  const Communicator& communicator() const { return *communicator_; }

  // A failure becomes the communicator's.
  void run();

 private:
  void await_turn();
  void require_memory() const;
  void run_operations();
  void count_use(int change);
  void settle();

  std::shared_ptr<Communicator> communicator_;
  std::vector<Operation> operations_;
  bool captured_;
  bool settled_ = false;  // no longer counted as queued
  uint64_t ticket_ = 0;
};

}  // namespace symmoe::fake
