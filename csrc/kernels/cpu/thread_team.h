#pragma once

#include <cstdint>

namespace symmoe::kernels {

// Work of one part; must not throw.
using PartFunction = void (*)(void* context, int part);

// Calls part(context, 0) ... part(context, parts - 1), the first on the calling thread, the others
// on the process's team of worker threads; returns when all are done. The team starts at the first
// use, grows as needed, parks between calls, ends with the process, and starts anew in a forked
// child. When another thread is using it, or no thread can be had, the caller does the work itself.
void run_parts(int parts, PartFunction part, void* context) noexcept;

// How many of `threads` to use for work that moves `bytes`: waking a worker has to pay.
int useful_threads(int threads, int64_t bytes);

}  // namespace symmoe::kernels
