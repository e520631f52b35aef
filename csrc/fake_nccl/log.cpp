#include "fake_nccl/log.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <vector>

namespace symmoe::fake {
namespace {

constexpr size_t kMaxCalls = size_t{1} << 20;

struct Logs {
  std::mutex mutex;
  std::vector<FakeNcclCall> calls;
  size_t misuses = 0;
  std::string last_misuse;
};

// Never destroyed: streams may still run when the process ends.
Logs& logs() {
  static auto* const all = new Logs;
  return *all;
}

void copy_text(const std::string& from, char* to, size_t capacity) {
  if (capacity == 0) return;
  const size_t length = std::min(from.size(), capacity - 1);
  std::memcpy(to, from.data(), length);
  to[length] = '\0';
}

}  // namespace

FakeNcclCall new_call(const char* operation) {
  FakeNcclCall call{};
  copy_text(operation, call.operation, sizeof(call.operation));
  call.rank = -1;
  call.type = -1;
  call.kernel = kFakeNcclNoKernel;
  call.peer = -1;
  return call;
}

void log_call(const FakeNcclCall& call) {
  Logs& all = logs();
  const std::lock_guard lock(all.mutex);
  if (all.calls.size() < kMaxCalls) all.calls.push_back(call);
}

void log_misuse(const std::string& text) {
  std::fprintf(stderr, "FAKE NCCL: %s\n", text.c_str());
  Logs& all = logs();
  const std::lock_guard lock(all.mutex);
  ++all.misuses;
  all.last_misuse = text;
}

size_t copy_calls(FakeNcclCall* calls, size_t capacity) {
  Logs& all = logs();
  const std::lock_guard lock(all.mutex);
  std::copy_n(all.calls.begin(), std::min(capacity, all.calls.size()), calls);
  return all.calls.size();
}

size_t copy_misuses(char* text, size_t capacity) {
  Logs& all = logs();
  const std::lock_guard lock(all.mutex);
  copy_text(all.last_misuse, text, capacity);
  return all.misuses;
}

void clear_logs() {
  Logs& all = logs();
  const std::lock_guard lock(all.mutex);
  all.calls.clear();
  all.misuses = 0;
  all.last_misuse.clear();
}

}  // namespace symmoe::fake
