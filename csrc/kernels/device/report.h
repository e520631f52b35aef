#pragma once

#include "kernels/device/dev.h"
#include "kernels/device/launch.h"

namespace symmoe::kernels::SYMMOE_PLATFORM {

// The first fault is kept, and one that comes while another is being written is dropped. But that
// the ranks have parted takes the place of a wrong value, with which they would have gone on.
SYMMOE_DEVICE void report(Fault* fault, Fault::Kind kind, int64_t subject, int64_t detail,
                          int64_t value) {
  if (fault == nullptr || !dev::claim(&fault->being_written)) return;
  const uint32_t kept = dev::peek(&fault->kind);
  if (kept == Fault::kNone || (kind >= Fault::kFirstFatal && kept < Fault::kFirstFatal)) {
    dev::store(&fault->subject, subject);
    dev::store(&fault->detail, detail);
    dev::store(&fault->value, value);
    dev::publish(&fault->kind, kind);
  }
  dev::publish(&fault->being_written, 0);
}

}  // namespace symmoe::kernels::SYMMOE_PLATFORM
