#include "backends/host/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <system_error>

#include "backends/host/memory.h"
#include "backends/host/refusal.h"

namespace symmoe::host {
namespace {

// As on GPUs, where a mapping consists of large pages. Everybody rounds alike.
constexpr size_t kGranularity = size_t{2} << 20;

struct Mapping {
  ino_t file;  // memfds of one kernel have different ones
  size_t bytes;
  size_t mapped_bytes;  // with the page behind
  int references;
  bool counted;  // against this process's limit
};

struct Mappings {
  std::mutex mutex;
  std::map<void*, Mapping> by_base;
};

// Never destroyed: streams may still run while the process ends.
Mappings& mappings() {
  static auto* const all = new Mappings;
  return *all;
}

size_t granules(size_t bytes) { return (bytes + kGranularity - 1) / kGranularity * kGranularity; }

Refusal refused(int status, const std::string& what) {
  return {status, what + ": " + std::system_category().message(errno)};
}

struct stat status_of_file(int descriptor, const char* call) {
  struct stat status{};
  if (fstat(descriptor, &status) != 0) throw refused(kInvalidHandle, std::string(call) + ": fstat");
  return status;
}

// Maps the file with an untouchable page behind it.
void* map_file(int descriptor, size_t bytes, size_t mapped_bytes) {
  void* const base =
      mmap(nullptr, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw refused(kDeviceOutOfMemory, "out of memory: mmap");
  if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, 0) ==
      MAP_FAILED) {
    const Refusal refusal = refused(kDeviceOutOfMemory, "out of memory: mmap of shared memory");
    munmap(base, mapped_bytes);
    throw refusal;
  }
  return base;
}

void* add(int descriptor, size_t bytes, ino_t file, bool counted) {
  const size_t mapped_bytes = bytes + static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const base = map_file(descriptor, bytes, mapped_bytes);
  Mappings& all = mappings();
  const std::lock_guard lock(all.mutex);
  all.by_base[base] = {file, bytes, mapped_bytes, 1, counted};
  return base;
}

}  // namespace

void* allocate_shared(size_t bytes, int* descriptor) {
  *descriptor = -1;
  if (bytes == 0) throw Refusal{kInvalidArgument, "allocate_shared: 0 bytes"};
  const size_t whole = granules(bytes);
  take_bytes(whole);
  const int made = memfd_create("symmoe host device memory", MFD_CLOEXEC);
  try {
    if (made < 0) throw refused(kDeviceOutOfMemory, "out of memory: memfd_create");
    if (ftruncate(made, static_cast<off_t>(whole)) != 0) {
      throw refused(kDeviceOutOfMemory, "out of memory: ftruncate");
    }
    void* const memory = add(made, whole, status_of_file(made, "allocate_shared").st_ino, true);
    std::memset(memory, 0xFF, whole);
    *descriptor = made;
    return memory;
  } catch (...) {
    if (made >= 0) close(made);
    give_bytes(whole);
    throw;
  }
}

void* map_shared(int descriptor, size_t bytes) {
  const struct stat status = status_of_file(descriptor, "map_shared");
  const size_t whole = granules(bytes);
  if (static_cast<size_t>(status.st_size) != whole) {
    throw Refusal{kInvalidArgument, "map_shared: the memory has " + std::to_string(status.st_size) +
                                        " bytes, not " + std::to_string(whole)};
  }
  Mappings& all = mappings();
  {
    const std::lock_guard lock(all.mutex);
    for (auto& [base, mapping] : all.by_base) {
      if (mapping.file != status.st_ino) continue;
      ++mapping.references;
      return base;
    }
  }
  return add(descriptor, whole, status.st_ino, false);
}

void release_shared(void* memory, size_t bytes) {
  Mappings& all = mappings();
  Mapping ended{};
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.by_base.find(memory);
    if (found == all.by_base.end()) {
      throw Refusal{kInvalidArgument, "release_shared: not the start of live shared memory"};
    }
    if (found->second.bytes != granules(bytes)) {
      throw Refusal{kInvalidArgument, "release_shared: the memory has " +
                                          std::to_string(found->second.bytes) + " bytes, not " +
                                          std::to_string(granules(bytes))};
    }
    if (--found->second.references > 0) return;
    ended = found->second;
    all.by_base.erase(found);
  }
  quarantine(memory, ended.mapped_bytes);
  if (ended.counted) give_bytes(ended.bytes);
}

}  // namespace symmoe::host
