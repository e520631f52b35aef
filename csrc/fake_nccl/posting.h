#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace symmoe::fake {

// What a rank says about the call it is in. The first part has to be the same on all ranks, the
// rest is each rank's own.
struct Posting {
  std::array<char, 32> operation;
  uint64_t count;
  int32_t type;  // -1: has none, as for all that follow
  int32_t red_op;
  int32_t root;
  int32_t kernel;            // FakeNcclKernel
  uint64_t call;             // number of the call on this communicator, in host order; 0 in a graph
  uint64_t position;         // in its group
  uint64_t operations;       // of its group
  uint64_t window;           // of a symmetric kernel: ordinal, 0 where there is none
  uint64_t offset;           // in the window
  int32_t ordinary_receive;  // a symmetric kernel writes memory outside of windows
  uint64_t deregistered;     // of a registration: which windows went before it, in which order

  int32_t descriptor;  // of memory to be registered
  uint64_t address;
  uint64_t allocation_bytes;
  uint64_t allocation_offset;
};

Posting new_posting(const char* operation);

bool agree(const Posting& left, const Posting& right);

// "ncclReduceScatter of 64 bfloat16 (sum), call 5, kernel symmetric LD, window 2 at 4096 ...".
std::string describe(const Posting& posting);

}  // namespace symmoe::fake
