#include "kernels/device/emulator/options.h"

#include <cstdlib>

namespace symmoe::emulator {
namespace {

void read(const char* name, uint64_t* value) {
  const char* text = std::getenv(name);
  if (text != nullptr && *text != '\0') *value = std::strtoull(text, nullptr, 0);
}

Options from_environment() {
  Options options;
  uint64_t co_resident = 0;
  uint64_t spin_timeout_ms = static_cast<uint64_t>(options.spin_timeout_ms);
  read("SYMMOE_EMULATOR_SEED", &options.seed);
  read("SYMMOE_EMULATOR_CO_RESIDENT", &co_resident);
  read("SYMMOE_EMULATOR_SPIN_TIMEOUT_MS", &spin_timeout_ms);
  options.co_resident = co_resident != 0;
  options.spin_timeout_ms = static_cast<int64_t>(spin_timeout_ms);
  return options;
}

}  // namespace

Options& options() {
  static Options the_options = from_environment();
  return the_options;
}

}  // namespace symmoe::emulator
