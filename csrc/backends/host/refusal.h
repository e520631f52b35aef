#pragma once

#include <string>

#include "runtime/device_table.h"

namespace symmoe::host {

// Reasons of this back end's own, as a GPU runtime's codes come to the core: plus kVendorStatus.
enum HostStatus : int {
  kInvalidArgument = kVendorStatus + 1,
  kInvalidHandle = kVendorStatus + 2,
  kForked = kVendorStatus + 3,
};

// Inside the back end a call that cannot be done throws this; the table gives `status` to the
// caller and keeps `text` for error_text.
struct Refusal {
  int status;
  std::string text;
};

// Text of the calling thread's last refusal, if that was with this status.
const char* text_of(int status);
int remember(const Refusal& refusal);

}  // namespace symmoe::host
