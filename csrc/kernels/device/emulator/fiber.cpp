#include "kernels/device/emulator/fiber.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "kernels/device/emulator/sanitizers.h"
#include "kernels/device/emulator/violation.h"

namespace symmoe::emulator {
namespace {

// Sanitizers surround variables with space, and their reports are made on the stack at hand.
#if defined(SYMMOE_ASAN) || defined(SYMMOE_TSAN)
constexpr size_t kStackBytes = size_t{256} << 10;
#else
constexpr size_t kStackBytes = size_t{64} << 10;
#endif
constexpr size_t kGuardBytes = size_t{64} << 10;  // at least a page, on every machine

}  // namespace

Fiber::Fiber() {
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) violation("no memory for a stack: %s", std::strerror(errno));
  memory_ = static_cast<char*>(memory);
  stack_ = memory_ + kGuardBytes;
  if (mprotect(stack_, kStackBytes, PROT_READ | PROT_WRITE) != 0) {
    violation("no memory for a stack: %s", std::strerror(errno));
  }
#if defined(SYMMOE_TSAN)
  own_sanitizer_fiber_ = __tsan_create_fiber(0);
#endif
}

#if defined(SYMMOE_ASAN)
namespace {

// Frames that the address sanitizer keeps apart from the stack live as long as the fiber, because
// making them is dear; only the fiber itself can give them back.
thread_local Fiber* ending_fiber = nullptr;

}  // namespace

void Fiber::end() {
  Fiber* const self = ending_fiber;
  self->enter();
  self->leave(true);
}
#endif

Fiber::~Fiber() {
#if defined(SYMMOE_ASAN)
  ending_fiber = this;
  start(end);
  resume();
#endif
#if defined(SYMMOE_TSAN)
  __tsan_destroy_fiber(own_sanitizer_fiber_);
#endif
  munmap(memory_, kGuardBytes + kStackBytes);
}

SYMMOE_BOOKKEEPING void Fiber::start(void (*entry)()) { own_.prepare(stack_, kStackBytes, entry); }

SYMMOE_BOOKKEEPING void Fiber::resume() {
#if defined(SYMMOE_ASAN)
  __sanitizer_start_switch_fiber(&scheduler_fake_stack_, stack_, kStackBytes);
#endif
#if defined(SYMMOE_TSAN)
  scheduler_sanitizer_fiber_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(own_sanitizer_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
  Context::change(scheduler_, own_);
#if defined(SYMMOE_ASAN)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack_, nullptr, nullptr);
#endif
}

SYMMOE_BOOKKEEPING void Fiber::leave([[maybe_unused]] bool for_good) {
#if defined(SYMMOE_ASAN)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &own_fake_stack_, scheduler_stack_,
                                 scheduler_stack_bytes_);
#endif
#if defined(SYMMOE_TSAN)
  __tsan_switch_to_fiber(scheduler_sanitizer_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
  Context::change(own_, scheduler_);
}

SYMMOE_BOOKKEEPING void Fiber::enter() {
#if defined(SYMMOE_ASAN)
  __sanitizer_finish_switch_fiber(own_fake_stack_, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
}

SYMMOE_BOOKKEEPING void Fiber::pause() {
  leave(false);
  enter();
}

SYMMOE_BOOKKEEPING void Fiber::finish() {
  leave(false);
  std::abort();  // nobody resumes a fiber that has finished
}

}  // namespace symmoe::emulator
