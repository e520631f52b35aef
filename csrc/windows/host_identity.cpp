#include "windows/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "windows/random_hex.h"

namespace symmoe {
namespace {

std::string unreadable() { return "unreadable-" + random_hex(16); }

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  return std::getline(file, id) && !id.empty() ? id : unreadable();
}

// Of the calling thread: network namespaces can differ between threads.
std::string name_space(const char* kind) {
  struct stat status{};
  const std::string path = std::string("/proc/thread-self/ns/") + kind;
  return stat(path.c_str(), &status) == 0 ? std::to_string(status.st_ino) : unreadable();
}

}  // namespace

std::string host_identity() {
  return "boot=" + boot_id() + " netns=" + name_space("net") + " userns=" + name_space("user") +
         " uid=" + std::to_string(geteuid());
}

}  // namespace symmoe
