#include "fake_nccl/settings.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "fake_nccl/injection.h"
#include "runtime/nccl/abi.h"

namespace symmoe::fake {
namespace {

std::atomic<int> version_setting;
std::atomic<int64_t> timeout_setting;
std::atomic<bool> instant_setting;

double number_from(const char* name, double otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtod(text, nullptr);
}

[[maybe_unused]] const bool kEnvironmentWasRead = (read_environment(), true);

}  // namespace

int version() { return version_setting.load(std::memory_order_relaxed); }
int64_t timeout_ns() { return timeout_setting.load(std::memory_order_relaxed); }
bool instant() { return instant_setting.load(std::memory_order_relaxed); }

void read_environment() {
  version_setting =
      static_cast<int>(number_from("SYMMOE_FAKE_NCCL_VERSION", nccl_version(2, 30, 7)));
  timeout_setting = static_cast<int64_t>(number_from("SYMMOE_FAKE_NCCL_TIMEOUT", 20) * 1e9);
  instant_setting = number_from("SYMMOE_FAKE_NCCL_INSTANT", 0) != 0;
  const char* const failures = std::getenv("SYMMOE_FAKE_NCCL_FAIL");
  if (order_failures(failures == nullptr ? "" : failures)) return;
  // A test that orders a failure and gets none would prove nothing.
  std::fprintf(stderr, "FAKE NCCL: SYMMOE_FAKE_NCCL_FAIL is not understood: %s\n", failures);
  _exit(2);
}

}  // namespace symmoe::fake
