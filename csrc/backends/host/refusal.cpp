#include "backends/host/refusal.h"

#include <utility>

namespace symmoe::host {
namespace {

Refusal& last_refusal() {
  thread_local Refusal last{kDeviceOk, ""};
  return last;
}

}  // namespace

const char* text_of(int status) {
  const Refusal& last = last_refusal();
  if (status == last.status && status != kDeviceOk) return last.text.c_str();
  switch (status) {
    case kDeviceOk:
      return "no error";
    case kDeviceNotReady:
      return "the work is not done yet";
    case kDeviceOutOfMemory:
      return "out of memory";
    case kDeviceInvalidCapture:
      return "not allowed in this state of a capture";
    default:
      return "unknown error";
  }
}

int remember(const Refusal& refusal) {
  last_refusal() = refusal;
  return refusal.status;
}

}  // namespace symmoe::host
