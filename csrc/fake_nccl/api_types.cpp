// The fake's functions have the types of the table through which the core calls NCCL.

#include <type_traits>

#include "fake_nccl/api.h"
#include "runtime/nccl/functions.h"

namespace symmoe::fake {
namespace {

#define SAME_TYPE(function, member) \
  static_assert(std::is_same_v<decltype(&::function), decltype(NcclFunctions::member)>)

SAME_TYPE(ncclGetVersion, get_version);
SAME_TYPE(ncclGetErrorString, get_error_string);
SAME_TYPE(ncclGetLastError, get_last_error);
SAME_TYPE(ncclGetUniqueId, get_unique_id);
SAME_TYPE(ncclCommInitRank, comm_init_rank);
SAME_TYPE(ncclCommDestroy, comm_destroy);
SAME_TYPE(ncclCommAbort, comm_abort);
SAME_TYPE(ncclCommGetAsyncError, comm_get_async_error);
SAME_TYPE(ncclCommCount, comm_count);
SAME_TYPE(ncclCommCuDevice, comm_cu_device);
SAME_TYPE(ncclCommUserRank, comm_user_rank);
SAME_TYPE(ncclGroupStart, group_start);
SAME_TYPE(ncclGroupEnd, group_end);
SAME_TYPE(ncclReduceScatter, reduce_scatter);
SAME_TYPE(ncclAllGather, all_gather);
SAME_TYPE(ncclReduce, reduce);
SAME_TYPE(ncclBroadcast, broadcast);
SAME_TYPE(ncclSend, send);
SAME_TYPE(ncclRecv, receive);
SAME_TYPE(ncclMemAlloc, mem_alloc);
SAME_TYPE(ncclMemFree, mem_free);
SAME_TYPE(ncclCommWindowRegister, window_register);
SAME_TYPE(ncclCommWindowDeregister, window_deregister);
SAME_TYPE(ncclGetLsaDevicePointer, get_lsa_device_pointer);

}  // namespace
}  // namespace symmoe::fake
