#include "backends/host/instruments.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "backends/host/refusal.h"

namespace symmoe::host {
namespace {

struct Order {
  std::string function;
  int remaining;
  int status;
};

struct Instruments {
  std::atomic<bool> has_orders = false;  // spares ordinary calls the lock
  std::mutex mutex;
  std::vector<Order> orders;
  std::map<std::string, uint64_t, std::less<>> counts;
};

// Never destroyed: streams may still run while the process ends.
Instruments& instruments() {
  static auto* const all = new Instruments;
  return *all;
}

}  // namespace

void order_failure(const char* function, int nth, int status) {
  Instruments& all = instruments();
  const std::lock_guard lock(all.mutex);
  const std::string name = function;
  if (name.empty()) {
    all.orders.clear();
  } else {
    all.orders.push_back({name, nth, status});
  }
  all.has_orders.store(!all.orders.empty());
}

void meet_orders(const char* function) {
  Instruments& all = instruments();
  if (!all.has_orders.load()) return;
  const std::lock_guard lock(all.mutex);
  int status = kDeviceOk;
  for (Order& order : all.orders) {
    if (order.function == function && --order.remaining == 0) status = order.status;
  }
  std::erase_if(all.orders, [](const Order& order) { return order.remaining <= 0; });
  all.has_orders.store(!all.orders.empty());
  if (status != kDeviceOk) throw Refusal{status, std::string(function) + ": failure by order"};
}

void count_work(const char* function) {
  Instruments& all = instruments();
  const std::lock_guard lock(all.mutex);
  ++all.counts[function];
}

uint64_t work_count(const char* function) {
  Instruments& all = instruments();
  const std::lock_guard lock(all.mutex);
  const auto found = all.counts.find(function);
  return found == all.counts.end() ? 0 : found->second;
}

}  // namespace symmoe::host
