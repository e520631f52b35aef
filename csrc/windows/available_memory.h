#pragma once

#include <cstdint>
#include <string>

namespace symmoe {

struct AvailableMemory {
  uint64_t bytes = 0;
  std::string source;  // what sets the limit, for messages: "MemAvailable", "cgroup /a/b"
};

// What this process can still take without waking the out-of-memory killer: the smallest of the
// machine's MemAvailable and the room below the memory limits of its control groups (v1 and v2),
// page cache counted as free. Swap does not count: a window that swaps is of no use.
AvailableMemory available_memory();

}  // namespace symmoe
