// The bug: the window's lane does not hear of a call that writes the window.
#include "collectives/device/call_source.h"

#define note(stream, capture) done(), (void)(stream), (void)(capture)
#include "collectives/device/output_calls.cpp"
#undef note

#include "device_output_test.cpp"
