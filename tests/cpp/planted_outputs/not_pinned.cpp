// The bug: a window that a graph writes is not kept for it.
#include "collectives/device/call_source.h"

#define pinned condemned
#include "collectives/device/output_calls.cpp"
#undef pinned

#include "device_output_test.cpp"
