#pragma once

#include <string>

#include "runtime/nccl/abi.h"

namespace symmoe::fake {

// Inside the fake a call that cannot be done throws this; the C interface turns it into the code,
// and keeps the text for ncclGetLastError.
struct Refusal {
  NcclResult code;
  std::string text;
};

}  // namespace symmoe::fake
