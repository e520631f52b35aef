#include "runtime/nccl/capabilities.h"

#include "runtime/nccl/library.h"

namespace symmoe {
namespace {

std::string too_old(int version, const char* feature, int since) {
  return "NCCL " + nccl_version_text(version) + " has no " + feature + "; " +
         nccl_version_text(since) + " is needed";
}

std::string missing_symbol(int version, const char* symbol) {
  return "this build of NCCL " + nccl_version_text(version) + " has no " + symbol;
}

std::string why_no_windows(int version, const NcclFunctions& functions) {
  if (version < kNcclWindowsSince) return too_old(version, "windows", kNcclWindowsSince);
  if (functions.mem_alloc == nullptr) return missing_symbol(version, "ncclMemAlloc");
  if (functions.mem_free == nullptr) return missing_symbol(version, "ncclMemFree");
  if (functions.window_register == nullptr) {
    return missing_symbol(version, "ncclCommWindowRegister");
  }
  if (functions.window_deregister == nullptr) {
    return missing_symbol(version, "ncclCommWindowDeregister");
  }
  return "";
}

std::string why_no_direct(int version, const std::string& no_windows, bool allow_unsafe) {
  if (!no_windows.empty()) return no_windows;
  if (version < kNcclOrdinaryReceiveSince) {
    return too_old(version, "reduce-scatter from a window into ordinary memory",
                   kNcclOrdinaryReceiveSince);
  }
  if (version < kNcclDirectSafeSince && !allow_unsafe) {
    return "NCCL " + nccl_version_text(version) +
           " may start its symmetric kernels before the kernel that writes the window has "
           "finished (they lack the grid-dependency wait), so that under CUDA graphs the result "
           "can silently be made of stale data; " +
           nccl_version_text(kNcclDirectSafeSince) +
           " is needed, or SYMMOE_ALLOW_UNSAFE_NCCL=1 to take the risk";
  }
  return "";
}

std::string why_no_peer_pointers(int version, const NcclFunctions& functions,
                                 const std::string& no_windows) {
  if (!no_windows.empty()) return no_windows;
  if (version < kNcclPeerPointersSince) {
    return too_old(version, "addresses of the peers' windows", kNcclPeerPointersSince);
  }
  if (functions.get_lsa_device_pointer == nullptr) {
    return missing_symbol(version, "ncclGetLsaDevicePointer");
  }
  return "";
}

}  // namespace

NcclCapabilities capabilities_of(int version, const NcclFunctions& functions, bool allow_unsafe) {
  NcclCapabilities found;
  found.no_windows = why_no_windows(version, functions);
  found.no_direct = why_no_direct(version, found.no_windows, allow_unsafe);
  found.no_peer_pointers = why_no_peer_pointers(version, functions, found.no_windows);
  found.windows = found.no_windows.empty();
  found.direct = found.no_direct.empty();
  found.peer_pointers = found.no_peer_pointers.empty();
  return found;
}

}  // namespace symmoe
