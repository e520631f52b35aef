#pragma once

#include <cstddef>

// The part of NCCL's C interface that is used here, in own declarations: no header of NCCL is
// needed to build, and one build serves every version. RCCL has the same interface. The numbers are
// part of NCCL's ABI; a test compares them, and the functions of functions.h, with NCCL's header.
namespace symmoe {

using NcclComm = void*;    // ncclComm_t
using NcclWindow = void*;  // ncclWindow_t
using NcclStream = void*;  // cudaStream_t, hipStream_t

// Passed by value to the functions that take one.
struct NcclUniqueId {
  char internal[128];
};

// ncclResult_t.
enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
};

// ncclDataType_t.
enum NcclDataType : int {
  kNcclInt8 = 0,
  kNcclUint8 = 1,
  kNcclInt32 = 2,
  kNcclUint32 = 3,
  kNcclInt64 = 4,
  kNcclUint64 = 5,
  kNcclFloat16 = 6,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclBfloat16 = 9,
};

// ncclRedOp_t.
enum NcclRedOp : int {
  kNcclSum = 0,
  kNcclProd = 1,
  kNcclMax = 2,
  kNcclMin = 3,
  kNcclAvg = 4,
};

// Flags of ncclCommWindowRegister.
constexpr int kNcclWindowSymmetric = 1;
// A window starts at a multiple of this from the start of its allocation.
constexpr size_t kNcclWindowAlignment = 4096;

// As ncclGetVersion encodes it: nccl_version(2, 30, 7) == 23007.
constexpr int nccl_version(int major, int minor, int patch) {
  const int thousands = major <= 2 && minor <= 8 ? 1000 : 10000;
  return major * thousands + minor * 100 + patch;
}

}  // namespace symmoe
