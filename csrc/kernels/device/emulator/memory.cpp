#include "kernels/device/emulator/memory.h"

#include <atomic>
#include <vector>

#include "kernels/device/emulator/block.h"
#include "kernels/device/emulator/sanitizers.h"
#include "kernels/device/emulator/violation.h"

namespace symmoe::emulator {
namespace {

struct Piece {
  uintptr_t begin;
  uintptr_t end;
  Permission permission;
};

std::vector<Piece>& pieces() {
  static std::vector<Piece> all;
  return all;
}

std::atomic<uint64_t> loaded_bytes{0};
std::atomic<uint64_t> stored_bytes{0};

const char* name_of(Access access) {
  switch (access) {
    case Access::kLoad:
      return "load";
    case Access::kReadOnlyLoad:
      return "read-only load";
    case Access::kStore:
      return "store";
  }
  return "access";
}

bool allows(Permission permission, Access access) {
  switch (access) {
    case Access::kLoad:
      return true;
    case Access::kReadOnlyLoad:
      return permission == Permission::kRead;
    case Access::kStore:
      return permission == Permission::kWrite;
  }
  return false;
}

SYMMOE_BOOKKEEPING void check_declared(uintptr_t begin, size_t bytes, Access access) {
  bool inside = false;
  for (const Piece& piece : pieces()) {
    if (begin < piece.begin || begin + bytes > piece.end) continue;
    if (allows(piece.permission, access)) return;
    inside = true;
  }
  violation("%zu-byte %s at %#zx, %s", bytes, name_of(access), static_cast<size_t>(begin),
            inside ? "which this memory does not permit" : "out of bounds");
}

}  // namespace

SYMMOE_BOOKKEEPING void note_access(const void* address, size_t bytes, Access access) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (begin % bytes != 0) {
    violation("misaligned %zu-byte %s at %#zx", bytes, name_of(access), static_cast<size_t>(begin));
  }
  if (!pieces().empty()) check_declared(begin, bytes, access);
  Counters& counters = Block::current()->counters();
  (access == Access::kStore ? counters.stored : counters.loaded) += bytes;
}

void declare_memory(const void* begin, size_t bytes, Permission permission) {
  const auto start = reinterpret_cast<uintptr_t>(begin);
  pieces().push_back({start, start + bytes, permission});
}

void forget_memory() { pieces().clear(); }

Counters counters() { return {loaded_bytes.load(), stored_bytes.load()}; }

void reset_counters() {
  loaded_bytes = 0;
  stored_bytes = 0;
}

void add_counters(const Counters& of_block) {
  loaded_bytes += of_block.loaded;
  stored_bytes += of_block.stored;
}

}  // namespace symmoe::emulator
