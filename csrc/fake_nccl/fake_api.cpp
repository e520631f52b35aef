#include "fake_nccl/fake_api.h"

#include "fake_nccl/allocation.h"
#include "fake_nccl/call.h"
#include "fake_nccl/injection.h"
#include "fake_nccl/log.h"
#include "fake_nccl/settings.h"

using namespace symmoe::fake;

size_t symmoe_fake_nccl_calls(FakeNcclCall* calls, size_t capacity) {
  return copy_calls(calls, capacity);
}

void symmoe_fake_nccl_live(FakeNcclLive* live) {
  live->communicators = communicators().count();
  live->windows = windows().count();
  count_allocations(&live->allocations, &live->allocated_bytes);
}

size_t symmoe_fake_nccl_misuses(char* text, size_t capacity) {
  return copy_misuses(text, capacity);
}

int symmoe_fake_nccl_fail(const char* rules) { return order_failures(rules) ? 0 : 1; }

void symmoe_fake_nccl_reset() {
  clear_logs();
  read_environment();
}
