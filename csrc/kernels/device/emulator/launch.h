#pragma once

#include <functional>

namespace symmoe::emulator {

// What takes launches: the stream machinery of whoever has one. Returns an error code, 0 for none.
// The work may be run any number of times.
using Enqueue = int (*)(void* stream, std::function<void()> work);

// Null, as at the start: work runs at once, in the calling thread, whatever the stream.
void set_enqueue(Enqueue enqueue);

// Runs all blocks of a kernel and returns when they are done.
void run_grid(const std::function<void()>& kernel, unsigned blocks, unsigned threads);

int enqueue(void* stream, std::function<void()> work);

// kernel<<<blocks, threads, 0, stream>>>(arguments...)
template <typename... Parameters, typename... Arguments>
int launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, void* stream,
           Arguments... arguments) {
  return enqueue(stream, [=] { run_grid([=] { kernel(arguments...); }, blocks, threads); });
}

}  // namespace symmoe::emulator
