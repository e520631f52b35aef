#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "pool/buffer.h"
#include "sync/flag_line.h"

namespace symmoe {

// Why a group cannot go on, for the peers to read.
struct PoisonNote {
  enum class Kind : uint32_t {
    kNone = 0,
    kPeerLost = 1,
    kDeadline = 2,
    kOther = 3,
    kCrossedCalls = 4
  };
  static constexpr size_t kTextBytes = 504;

  std::atomic<Kind> kind;  // stored last
  uint32_t reserved;
  char text[kTextBytes];
};

// All that a rank shows its peers besides windows: zeroed memory that every rank maps.
struct ControlBlock {
  PoisonNote poison;
  FlagLine calls[kRoles][kMaxLanes];  // one channel per role and lane
  FlagLine checks[kMaxLanes];         // signature exchange of SYMMOE_CHECK, whatever the role
  FlagLine administration;            // collective pool calls
};

}  // namespace symmoe
