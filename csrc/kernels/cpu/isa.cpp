#include "kernels/cpu/isa.h"

#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace symmoe::kernels {
namespace {

#if defined(__x86_64__)
bool has_f16c() {  // not every compiler's __builtin_cpu_supports knows the name
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// These also ask whether the operating system saves the wide registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool has_avx512bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

const std::vector<const KernelTable*>& available_tables() {
  static const std::vector<const KernelTable*> tables = [] {
    std::vector<const KernelTable*> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (has_avx512bf16()) found.push_back(&avx512bf16::kTable);
    if (has_avx512()) found.push_back(&avx512::kTable);
    if (has_avx2()) found.push_back(&avx2::kTable);
#endif
    found.push_back(&plain::kTable);
    return found;
  }();
  return tables;
}

const KernelTable& find_table(std::string_view name, const char* who) {
  std::string possible;
  for (const KernelTable* table : available_tables()) {
    if (name == table->name) return *table;
    possible += possible.empty() ? "" : ", ";
    possible += table->name;
  }
  throw InvalidArgument(std::string(who) + ": instruction set '" + std::string(name) +
                        "' is unknown or not supported by this machine; possible: " + possible);
}

std::atomic<const KernelTable*> chosen{nullptr};

}  // namespace

const KernelTable& kernel_table() {
  const KernelTable* table = chosen.load(std::memory_order_acquire);
  if (table == nullptr) {
    const char* wanted = std::getenv("SYMMOE_ISA");
    table = wanted != nullptr && *wanted != '\0' ? &find_table(wanted, "SYMMOE_ISA")
                                                 : available_tables().front();
    chosen.store(table, std::memory_order_release);
  }
  return *table;
}

const char* isa_name() { return kernel_table().name; }

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const KernelTable* table : available_tables()) names.emplace_back(table->name);
  return names;
}

void set_isa(std::string_view name) {
  chosen.store(&find_table(name, "set_isa"), std::memory_order_release);
}

}  // namespace symmoe::kernels
