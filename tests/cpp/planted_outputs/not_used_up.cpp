// The bug: rows are gathered into a window again that nobody has acquired since.
#include "collectives/device/call_source.h"

#define store(value, order) load()
#include "collectives/device/output_calls.cpp"
#undef store

#include "device_output_test.cpp"
