#pragma once

#include <cstddef>

// SYMMOE_PORTABLE_CONTEXT is for tests of the second way on a processor that has the first.
#if defined(__x86_64__) && !defined(SYMMOE_PORTABLE_CONTEXT)
#define SYMMOE_OWN_CONTEXT 1
#else
#include <ucontext.h>
#endif

namespace symmoe::emulator {

// Where a flow of control stands: registers and stack. Switching on x86-64 is a dozen instructions;
// elsewhere it is swapcontext, which also asks the kernel for the signal mask, twice per switch.
class Context {
 public:
  // The first switch to this context calls `entry`, which must not return, on that stack.
  void prepare(void* stack, size_t bytes, void (*entry)());

  // Goes on at `to`, and returns once somebody switches back to `from`.
  static void change(Context& from, Context& to);

 private:
#if defined(SYMMOE_OWN_CONTEXT)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace symmoe::emulator
