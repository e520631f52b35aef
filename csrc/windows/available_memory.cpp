#include "windows/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace symmoe {
namespace {

// A file that holds one number. Nothing if it cannot be read or says "max".
std::optional<uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The value after `key` in a file of "key value" lines; 0 if there is none.
uint64_t read_field(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    uint64_t value = 0;
    if (words >> word >> value && word == key) return value;
  }
  return 0;
}

// The two versions of control groups name the same four things differently.
struct Hierarchy {
  const char* mount;
  const char* limit;
  const char* usage;
  const char* inactive_file;
  const char* active_file;
};

constexpr Hierarchy kVersion2{"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file",
                              "active_file"};
constexpr Hierarchy kVersion1{"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                              "memory.usage_in_bytes", "total_inactive_file", "total_active_file"};

// Every ancestor may set a limit of its own. Inside a container the path may be one of the host,
// which does not exist here; the walk then ends at the mount point, which is the container's group.
void apply_limits(const Hierarchy& names, std::string path, AvailableMemory& result) {
  for (;;) {
    const std::string folder = names.mount + path + "/";
    const std::optional<uint64_t> limit = read_number(folder + names.limit);
    const std::optional<uint64_t> usage = read_number(folder + names.usage);
    if (limit && usage) {
      const uint64_t cache = read_field(folder + "memory.stat", names.inactive_file) +
                             read_field(folder + "memory.stat", names.active_file);
      const uint64_t used = *usage - std::min(*usage, cache);
      const uint64_t room = *limit - std::min(*limit, used);
      if (room < result.bytes) result = {room, "memory limit of cgroup " + path + "/"};
    }
    if (path.empty()) return;
    path.erase(path.find_last_of('/'));
  }
}

// Lines of /proc/self/cgroup: "ID:CONTROLLER,CONTROLLER:/path", with "0::/path" for version 2.
void apply_all_limits(AvailableMemory& result) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (path.empty() || path.front() != '/') continue;
    if (path == "/") path.clear();
    if (controllers == ",,") apply_limits(kVersion2, path, result);
    if (controllers.find(",memory,") != std::string::npos) apply_limits(kVersion1, path, result);
  }
}

}  // namespace

AvailableMemory available_memory() {
  AvailableMemory result{std::numeric_limits<uint64_t>::max(), "no known limit"};
  const uint64_t kibibytes = read_field("/proc/meminfo", "MemAvailable:");
  if (kibibytes > 0) result = {kibibytes * 1024, "MemAvailable"};
  apply_all_limits(result);
  return result;
}

}  // namespace symmoe
