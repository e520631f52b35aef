// The bug: the store that publishes a call does not order what was written before it. This source
// brings its own copy of the channel, which the linker takes instead of the library's.

#ifdef SYMMOE_PLANT
#define SYMMOE_PUBLISH_ORDER std::memory_order_relaxed
#endif

#include "sync/channel.cpp"

#include "whole_protocol.h"

int main() { return symmoe::check::run_whole_protocol(); }
