#pragma once

#include <cstddef>
#include <cstdint>

// What the fake NCCL exports beside NCCL's own functions: what happened, for tests to look at, and
// the means to make things go wrong. All of it is about the calling process.
#pragma GCC visibility push(default)
extern "C" {

enum FakeNcclKernel : int32_t {
  kFakeNcclNoKernel = -1,    // a call that queues no work
  kFakeNcclOrdinary = 0,     // ring order, rounded at every hop; or a plain copy
  kFakeNcclSymmetricLL = 1,  // small: rank order, rounded once
  kFakeNcclSymmetricLD = 2,  // from the own rank on, wrapping; rounded once
};

// One call of NCCL's interface that succeeded on the host.
struct FakeNcclCall {
  char operation[32];    // "ncclReduceScatter"
  int32_t communicator;  // 1 for the first group this process met, and so on; 0: none concerned
  int32_t rank;          // -1 where the call has none
  uint64_t count;        // elements; bytes for memory and windows
  int32_t type;          // ncclDataType_t; -1 where there is none
  int32_t kernel;        // FakeNcclKernel
  int32_t captured;      // 1: became part of a graph
  int32_t peer;          // root or peer; -1 where there is none
  void* stream;
};

struct FakeNcclLive {
  uint64_t communicators;
  uint64_t windows;
  uint64_t allocations;
  uint64_t allocated_bytes;
};

// Copies the first `capacity` logged calls; returns how many there are. The log ends at 2^20 calls.
size_t symmoe_fake_nccl_calls(FakeNcclCall* calls, size_t capacity);

void symmoe_fake_nccl_live(FakeNcclLive* live);

// Misuse that real NCCL would answer with wrong data or a crash, such as a graph that reads a
// window after its deregistration. Copies a text of the last one; returns how many there were.
size_t symmoe_fake_nccl_misuses(char* text, size_t capacity);

// Replaces the failures to inject (the form of SYMMOE_FAKE_NCCL_FAIL, see README.md). Returns 0, or
// 1 if it does not understand the text, which then changes nothing.
int symmoe_fake_nccl_fail(const char* rules);

// Forgets the log, the misuses and the failures to inject, and reads the environment afresh. What
// is alive stays alive.
void symmoe_fake_nccl_reset();

}  // extern "C"
#pragma GCC visibility pop
