// The bug: a rank sees its peer's flag without acquiring what the peer wrote before. This source
// brings its own copy of the waiting code, which the linker takes instead of the library's.

#include "whole_protocol.h"

// The standard headers are all in by now: only the product's sources below see the weaker order.
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>

#include <algorithm>
#include <climits>

#ifdef SYMMOE_PLANT
#define memory_order_acquire memory_order_relaxed
#endif

#include "sync/adaptive_wait.cpp"
#include "sync/channel.cpp"

int main() { return symmoe::check::run_whole_protocol(); }
