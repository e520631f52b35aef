#pragma once

#include <cstddef>
#include <cstdint>

// What kernels do to global memory: every load and store passes here.
namespace symmoe::emulator {

enum class Access : uint8_t { kLoad, kReadOnlyLoad, kStore };

// Checks one access of `bytes` (a power of two) and counts it.
void note_access(const void* address, size_t bytes, Access access);

// What a kernel may do with a piece of memory.
enum class Permission : uint8_t {
  kRead,            // nobody writes it while the kernel runs
  kReadPeersWrite,  // read-only loads could give stale values
  kWrite,           // loads and stores
};

// Once a piece is declared, an access that no declared piece permits is a violation. To be called
// while no kernel runs.
void declare_memory(const void* begin, size_t bytes, Permission permission);
void forget_memory();

// Bytes of global memory, as a device would move them if nothing was cached.
struct Counters {
  uint64_t loaded = 0;
  uint64_t stored = 0;
};

// Of all blocks that have ended since the last reset.
Counters counters();
void reset_counters();

// Called when a block ends.
void add_counters(const Counters& of_block);

}  // namespace symmoe::emulator
