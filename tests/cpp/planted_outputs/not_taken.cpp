// The bug: a call that writes the window does not take the window's lane.
#include "collectives/device/call_source.h"

#define emplace(lane, caller) reset()
#include "collectives/device/output_calls.cpp"
#undef emplace

#include "device_output_test.cpp"
