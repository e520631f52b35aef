#pragma once

#include <cstdint>

namespace symmoe::fake {

// A process that cannot be mistaken for a later one with the same number.
struct ProcessIdentity {
  int32_t pid;
  uint64_t started;  // clock ticks since the machine's start
};

ProcessIdentity this_process();

// False once the process has ended, also while its parent has not noticed yet.
bool alive(const ProcessIdentity& process);

}  // namespace symmoe::fake
