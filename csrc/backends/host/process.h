#pragma once

namespace symmoe::host {

// Threads do not survive a fork: in the child all calls are refused. Must be looked at before any
// lock is taken, which some other thread of the parent may have held.
bool is_forked_child();

// From its first call on, forks are noticed and the end of the process stops the streams.
void watch_process();

}  // namespace symmoe::host
