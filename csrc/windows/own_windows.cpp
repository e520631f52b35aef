#include "windows/own_windows.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace symmoe::own_windows {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<const SharedMemory*> windows;
};

Registry& registry();

// Held across a fork, so that no thread that is not in the child has the lock there.
void before_fork() { registry().mutex.lock(); }

void after_fork_in_parent() { registry().mutex.unlock(); }

// The child has none of the windows. Nothing is allocated or freed here: other threads may have
// been at that when the process was forked.
void after_fork_in_child() {
  registry().windows.clear();
  registry().mutex.unlock();
}

// Never destroyed: windows under live tensors may end after everything else.
Registry& registry() {
  static Registry* const instance = [] {
    auto* const made = new Registry;
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return made;
  }();
  return *instance;
}

}  // namespace

std::shared_ptr<SharedMemory> registered(SharedMemory memory) {
  const std::shared_ptr<SharedMemory> shared(new SharedMemory(std::move(memory)),
                                             [](SharedMemory* ended) {
                                               {
                                                 const std::lock_guard lock(registry().mutex);
                                                 std::erase(registry().windows, ended);
                                               }
                                               delete ended;
                                             });
  const std::lock_guard lock(registry().mutex);
  registry().windows.push_back(shared.get());
  return shared;
}

bool contain(const void* address) {
  const auto* const byte = static_cast<const std::byte*>(address);
  const std::lock_guard lock(registry().mutex);
  return std::any_of(registry().windows.begin(), registry().windows.end(),
                     [&](const SharedMemory* window) {
                       return byte >= window->data() && byte < window->data() + window->bytes();
                     });
}

}  // namespace symmoe::own_windows
