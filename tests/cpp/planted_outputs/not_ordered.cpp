// The bug: a call that writes the window does not wait for its last use.
#include "collectives/device/call_source.h"

#define order(stream, capture, device, caller) done(), (void)(stream), (void)(capture)
#include "collectives/device/output_calls.cpp"
#undef order

#include "device_output_test.cpp"
