#pragma once

#include <cstddef>

#include "kernels/device/emulator/context.h"

namespace symmoe::emulator {

// A flow of control with a stack of its own, which runs when it is told to and stops by itself.
// Used again and again: a stack is dear, a start is not. Belongs to the thread that made it.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() calls `entry` on the fiber; it ends with finish() instead of returning.
  void start(void (*entry)());

  // Called by the scheduler: runs the fiber until it pauses or finishes.
  void resume();

  // Called on the fiber: back to the scheduler, until the next resume().
  void pause();
  [[noreturn]] void finish();

  // Called first of all by the entry.
  void enter();

 private:
  static void end();
  void leave(bool for_good);

  char* memory_;
  char* stack_;
  Context own_;
  Context scheduler_;
  // The sanitizers' handles of both sides; unused without them.
  void* own_fake_stack_ = nullptr;
  void* scheduler_fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
  void* own_sanitizer_fiber_ = nullptr;
  void* scheduler_sanitizer_fiber_ = nullptr;
};

}  // namespace symmoe::emulator
