#pragma once

#include "runtime/nccl/functions.h"

// NCCL's C interface as the fake exports it. The types are those of the table through which the
// core calls NCCL, so that the two cannot differ; a test compares the table with NCCL's header.
// NOLINTBEGIN(readability-identifier-naming): the names are NCCL's.
#pragma GCC visibility push(default)
extern "C" {

using symmoe::NcclComm;
using symmoe::NcclDataType;
using symmoe::NcclRedOp;
using symmoe::NcclResult;
using symmoe::NcclStream;
using symmoe::NcclUniqueId;
using symmoe::NcclWindow;

NcclResult ncclGetVersion(int* version);
const char* ncclGetErrorString(NcclResult result);
const char* ncclGetLastError(NcclComm comm);

NcclResult ncclGetUniqueId(NcclUniqueId* id);
NcclResult ncclCommInitRank(NcclComm* comm, int ranks, NcclUniqueId id, int rank);
// The configuration is not looked at.
NcclResult ncclCommInitRankConfig(NcclComm* comm, int ranks, NcclUniqueId id, int rank,
                                  void* config);
NcclResult ncclCommDestroy(NcclComm comm);
NcclResult ncclCommAbort(NcclComm comm);
NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult* result);
NcclResult ncclCommCount(NcclComm comm, int* ranks);
NcclResult ncclCommCuDevice(NcclComm comm, int* device);
NcclResult ncclCommUserRank(NcclComm comm, int* rank);

NcclResult ncclGroupStart();
NcclResult ncclGroupEnd();
NcclResult ncclReduceScatter(const void* send, void* receive, size_t count, NcclDataType type,
                             NcclRedOp op, NcclComm comm, NcclStream stream);
NcclResult ncclAllGather(const void* send, void* receive, size_t count, NcclDataType type,
                         NcclComm comm, NcclStream stream);
NcclResult ncclAllReduce(const void* send, void* receive, size_t count, NcclDataType type,
                         NcclRedOp op, NcclComm comm, NcclStream stream);
NcclResult ncclReduce(const void* send, void* receive, size_t count, NcclDataType type,
                      NcclRedOp op, int root, NcclComm comm, NcclStream stream);
NcclResult ncclBroadcast(const void* send, void* receive, size_t count, NcclDataType type, int root,
                         NcclComm comm, NcclStream stream);
NcclResult ncclSend(const void* send, size_t count, NcclDataType type, int peer, NcclComm comm,
                    NcclStream stream);
NcclResult ncclRecv(void* receive, size_t count, NcclDataType type, int peer, NcclComm comm,
                    NcclStream stream);

NcclResult ncclMemAlloc(void** memory, size_t bytes);
NcclResult ncclMemFree(void* memory);
NcclResult ncclCommWindowRegister(NcclComm comm, void* memory, size_t bytes, NcclWindow* window,
                                  int flags);
NcclResult ncclCommWindowDeregister(NcclComm comm, NcclWindow window);
NcclResult ncclGetLsaDevicePointer(NcclWindow window, size_t offset, int peer, void** pointer);

}  // extern "C"
#pragma GCC visibility pop
// NOLINTEND(readability-identifier-naming)
