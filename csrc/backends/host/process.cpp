#include "backends/host/process.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "backends/host/worker.h"

namespace symmoe::host {
namespace {

std::atomic<bool> forked = false;

void note_fork() { forked.store(true); }

void stop_streams() {
  if (!is_forked_child()) Worker::stop_all();
}

}  // namespace

bool is_forked_child() { return forked.load(); }

void watch_process() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, note_fork);
    std::atexit(stop_streams);
  });
}

}  // namespace symmoe::host
