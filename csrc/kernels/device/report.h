#pragma once

#include "kernels/device/dev.h"
#include "kernels/device/launch.h"

namespace symmoe::kernels::SYMMOE_PLATFORM {

// Only the first fault is kept; one that comes while another is being written is dropped.
SYMMOE_DEVICE void report(Fault* fault, Fault::Kind kind, int64_t subject, int64_t detail,
                          int64_t value) {
  if (fault == nullptr || !dev::claim(&fault->being_written)) return;
  if (dev::peek(&fault->kind) == Fault::kNone) {
    dev::store(&fault->subject, subject);
    dev::store(&fault->detail, detail);
    dev::store(&fault->value, value);
    dev::publish(&fault->kind, kind);
  }
  dev::publish(&fault->being_written, 0);
}

}  // namespace symmoe::kernels::SYMMOE_PLATFORM
