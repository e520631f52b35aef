#include "windows/own_windows.h"

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

// Never destroyed: windows under live tensors may end after everything else.
Registry& registry() {
  static auto* const instance = new Registry;
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
