#pragma once

#include <cstdint>

namespace symmoe {

// Counts the forks between the process that loaded this library and the current one. Whoever owns
// sockets or mappings remembers the value at creation; when it differs, the process is a fork of
// the owner and must touch neither.
uint64_t fork_generation();

// Descriptors that a forked child must not keep, because they would make a dead parent look alive
// to its peers. The child closes them in the atfork handler. (A child made by vfork or posix_spawn
// runs no handler, but it calls exec, and all our descriptors are close-on-exec.)
namespace fork_guard {

void watch(int descriptor);

// Forgets and closes in one step, so that no fork can happen in between.
void close_watched(int descriptor);

}  // namespace fork_guard

}  // namespace symmoe
