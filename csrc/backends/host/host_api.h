#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/device_table.h"

// What the host back end (libsymmoe_host.so) exports beside its table: the parts of a GPU runtime
// that the core itself never calls (capture, graphs), and the means of tests. Streams are threads:
// work really runs later, in stream order.
#pragma GCC visibility push(default)
extern "C" {

// Queues `run(context)`; afterwards, or when a graph that holds it goes away, `drop(context)`. On a
// stream that is being captured the work goes into the graph and runs at each replay.
// If it fails, neither is called and the context stays the caller's.
// The way in for libraries that stand for others, such as the fake NCCL.
int symmoe_host_enqueue(symmoe::StreamHandle stream, void (*run)(void*), void (*drop)(void*),
                        void* context);

using HostGraph = void*;
int symmoe_host_begin_capture(symmoe::StreamHandle stream, int mode);  // symmoe::CaptureMode
int symmoe_host_end_capture(symmoe::StreamHandle stream, HostGraph* graph);
int symmoe_host_launch_graph(HostGraph graph, symmoe::StreamHandle stream);
int symmoe_host_destroy_graph(HostGraph graph);

// Keeps the stream busy for this long, in stream order.
int symmoe_host_delay(symmoe::StreamHandle stream, int64_t microseconds);

// Waits for all streams.
int symmoe_host_synchronize();

// Allocations beyond this many live bytes fail with kDeviceOutOfMemory; 0: no limit.
void symmoe_host_limit_memory(size_t bytes);
size_t symmoe_host_live_bytes();  // allocate and allocate_pinned together
// Counts memory that another library takes as the device's (negative: gives back), or refuses it as
// allocate and release do: beyond the limit, and in a capture that the calling thread may not
// disturb.
int symmoe_host_account(int64_t bytes);
// The nth call from now on (1: the next one) of a table function, by its name, fails with `status`;
// an empty name forgets all such orders.
void symmoe_host_fail(const char* function, int nth, int status);
// Kernels and copies queued (or captured) so far, by table function: "topk_reduce", "copy", ...
uint64_t symmoe_host_count(const char* function);

}  // extern "C"
#pragma GCC visibility pop
