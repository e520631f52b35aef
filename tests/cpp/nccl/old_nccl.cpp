// NCCL 2.18.3 as far as opening a library goes: what every version exports, and nothing that came
// later. No function but ncclGetVersion does anything.

#include "runtime/nccl/functions.h"

#pragma GCC visibility push(default)
extern "C" {

symmoe::NcclResult ncclGetVersion(int* version) {
  *version = symmoe::nccl_version(2, 18, 3);
  return symmoe::kNcclSuccess;
}

void ncclGetErrorString() {}
void ncclGetUniqueId() {}
void ncclCommInitRank() {}
void ncclCommDestroy() {}
void ncclCommAbort() {}
void ncclCommGetAsyncError() {}
void ncclCommCount() {}
void ncclCommCuDevice() {}
void ncclCommUserRank() {}
void ncclGroupStart() {}
void ncclGroupEnd() {}
void ncclReduceScatter() {}
void ncclAllGather() {}
void ncclReduce() {}
void ncclBroadcast() {}
void ncclSend() {}
void ncclRecv() {}

}  // extern "C"
#pragma GCC visibility pop
