#include "windows/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

namespace symmoe {
namespace {

struct Registry {
  std::atomic<uint64_t> generation = 0;
  std::mutex mutex;
  std::vector<int> descriptors;
};

Registry& registry();

// Holding the mutex across the fork leaves the child with a list that no thread was changing.
void before_fork() { registry().mutex.lock(); }

void after_fork_in_parent() { registry().mutex.unlock(); }

// Runs in a child that may have had many threads as siblings: nothing here may allocate or free.
void after_fork_in_child() {
  Registry& all = registry();
  for (const int descriptor : all.descriptors) ::close(descriptor);
  all.descriptors.clear();
  all.generation.fetch_add(1);
  all.mutex.unlock();
}

// Never destroyed: owners in static storage may outlive it otherwise.
Registry& registry() {
  static Registry* const all = [] {
    auto* made = new Registry;
    made->descriptors.reserve(64);
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return made;
  }();
  return *all;
}

}  // namespace

uint64_t fork_generation() { return registry().generation.load(); }

namespace fork_guard {

void watch(int descriptor) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.descriptors.push_back(descriptor);
}

void close_watched(int descriptor) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::erase(all.descriptors, descriptor);
  ::close(descriptor);
}

}  // namespace fork_guard
}  // namespace symmoe
