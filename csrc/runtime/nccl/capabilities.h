#pragma once

#include <string>

#include "runtime/nccl/functions.h"

namespace symmoe {

// Versions from which on NCCL has what the paths need.
constexpr int kNcclWindowsSince = nccl_version(2, 27, 3);
constexpr int kNcclOrdinaryReceiveSince = nccl_version(2, 29, 2);  // registered send only
constexpr int kNcclPeerPointersSince = nccl_version(2, 29, 2);
constexpr int kNcclDirectSafeSince = nccl_version(2, 30, 7);

// What a library can do as far as its version and symbols tell; each reason is empty where the
// answer is yes. Whether windows work on this machine shows at registration only.
struct NcclCapabilities {
  bool windows = false;        // memory for windows, and registering it
  bool direct = false;         // symmetric reduce-scatter from a window into any memory
  bool peer_pointers = false;  // addresses of the peers' windows, for own kernels
  std::string no_windows;
  std::string no_direct;
  std::string no_peer_pointers;
};

// `allow_unsafe`: the user takes the direct path below the version that made it safe.
NcclCapabilities capabilities_of(int version, const NcclFunctions& functions, bool allow_unsafe);

}  // namespace symmoe
