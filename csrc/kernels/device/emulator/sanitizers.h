#pragma once

// Which sanitizer this is compiled for. Both need to be told when the processor changes stacks, and
// the thread sanitizer what orders the threads of a block, since in truth they are one thread.

#if defined(__SANITIZE_ADDRESS__)
#define SYMMOE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SYMMOE_ASAN 1
#endif
#endif

#if defined(__SANITIZE_THREAD__)
#define SYMMOE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SYMMOE_TSAN 1
#endif
#endif

#if defined(SYMMOE_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(SYMMOE_TSAN)
#include <sanitizer/tsan_interface.h>
// The emulator's own books are shared by all threads of a block and must not look like races.
#define SYMMOE_BOOKKEEPING __attribute__((no_sanitize("thread"), noinline))
#else
#define SYMMOE_BOOKKEEPING
#endif

namespace symmoe::emulator {

// What happened before order_before(p) in one thread has happened after order_after(p) in another.
inline void order_before([[maybe_unused]] void* point) {
#if defined(SYMMOE_TSAN)
  __tsan_release(point);
#endif
}
inline void order_after([[maybe_unused]] void* point) {
#if defined(SYMMOE_TSAN)
  __tsan_acquire(point);
#endif
}

}  // namespace symmoe::emulator
