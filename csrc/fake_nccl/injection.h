#pragma once

#include <string>

namespace symmoe::fake {

// Failures that a test ordered: "call:nth[:rank]=action", several separated by commas. The nth call
// counts per rank, from 1.
struct Failure {
  enum class Action {
    kNone,
    kError,    // the call returns ncclSystemError
    kOom,      // ... ncclUnhandledCudaError, as NCCL does without memory
    kNull,     // a registration gives a null window
    kAsync,    // the queued work fails, seen by ncclCommGetAsyncError
    kPending,  // a collective returns ncclInProgress, as on a communicator that does not block
    kDelay,    // the queued work (or the call) takes this much longer
    kDie,      // the process ends at once, with exit code 77
    kHang,     // the queued work (or the call) does not go on until the communicator is aborted
  };
  Action action = Action::kNone;
  int milliseconds = 0;
};

// False, and nothing changes, if the text makes no sense.
bool order_failures(const std::string& rules);

// The failure due at this call, and one call less until the next ones. kDie does not return.
Failure next_failure(const char* call, int rank);

// The rank that a call without a communicator (ncclMemAlloc) is taken to be of: that of the calling
// thread's last communicator, or else the process's last.
void set_current_rank(int rank);
int current_rank();

}  // namespace symmoe::fake
