#include "fake_nccl/process.h"

#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace symmoe::fake {
namespace {

constexpr int kStartTimeField = 22;  // of /proc/PID/stat, counted from 1

struct Status {
  char state;
  uint64_t started;
};

std::optional<Status> status_of(int32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // The second field is the program's name in brackets, which may hold anything.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  Status status{};
  fields >> status.state;
  std::string skipped;
  for (int field = 4; field < kStartTimeField; ++field) fields >> skipped;
  fields >> status.started;
  if (!fields) return std::nullopt;
  return status;
}

}  // namespace

ProcessIdentity this_process() {
  const int32_t pid = getpid();
  const std::optional<Status> status = status_of(pid);
  return {pid, status ? status->started : 0};
}

bool alive(const ProcessIdentity& process) {
  if (process.pid == getpid()) return true;
  const std::optional<Status> status = status_of(process.pid);
  return status && status->state != 'Z' && status->state != 'X' &&
         status->started == process.started;
}

}  // namespace symmoe::fake
