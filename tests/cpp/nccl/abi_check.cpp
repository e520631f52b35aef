// Compares csrc/runtime/nccl with the real nccl.h. It only has to compile.

#include <nccl.h>

#include <type_traits>

#include "runtime/nccl/functions.h"

// From NCCL's device interface, whose header needs CUDA.
extern "C" ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int peer,
                                                void** pointer);

namespace symmoe {
namespace {

// Whether a value of one type is passed just like one of the other.
template <typename Ours, typename Theirs>
constexpr bool passed_alike() {
  if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    return std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
  } else if constexpr (std::is_class_v<Ours> || std::is_class_v<Theirs>) {
    return std::is_class_v<Ours> && std::is_class_v<Theirs> &&
           std::is_trivially_copyable_v<Theirs> && sizeof(Ours) == sizeof(Theirs) &&
           alignof(Ours) == alignof(Theirs);
  } else {
    return sizeof(Ours) == sizeof(Theirs) &&
           std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;
  }
}

template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};

template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameCall<OurResult (*)(Ours...), TheirResult(Theirs...)>
    : std::bool_constant<passed_alike<OurResult, TheirResult>() &&
                         (passed_alike<Ours, Theirs>() && ...)> {};

#define SAME_CALL(member, function) \
  static_assert(SameCall<decltype(NcclFunctions::member), decltype(::function)>::value)

SAME_CALL(get_version, ncclGetVersion);
SAME_CALL(get_error_string, ncclGetErrorString);
SAME_CALL(get_last_error, ncclGetLastError);
SAME_CALL(get_unique_id, ncclGetUniqueId);
SAME_CALL(comm_init_rank, ncclCommInitRank);
SAME_CALL(comm_destroy, ncclCommDestroy);
SAME_CALL(comm_abort, ncclCommAbort);
SAME_CALL(comm_get_async_error, ncclCommGetAsyncError);
SAME_CALL(comm_count, ncclCommCount);
SAME_CALL(comm_cu_device, ncclCommCuDevice);
SAME_CALL(comm_user_rank, ncclCommUserRank);
SAME_CALL(group_start, ncclGroupStart);
SAME_CALL(group_end, ncclGroupEnd);
SAME_CALL(reduce_scatter, ncclReduceScatter);
SAME_CALL(all_gather, ncclAllGather);
SAME_CALL(reduce, ncclReduce);
SAME_CALL(broadcast, ncclBroadcast);
SAME_CALL(send, ncclSend);
SAME_CALL(receive, ncclRecv);
SAME_CALL(mem_alloc, ncclMemAlloc);
SAME_CALL(mem_free, ncclMemFree);
SAME_CALL(window_register, ncclCommWindowRegister);
SAME_CALL(window_deregister, ncclCommWindowDeregister);
SAME_CALL(get_lsa_device_pointer, ncclGetLsaDevicePointer);
// The comparison itself notices a difference.
static_assert(!SameCall<decltype(NcclFunctions::send), decltype(::ncclBroadcast)>::value);
static_assert(!SameCall<decltype(NcclFunctions::comm_count), decltype(::ncclGroupEnd)>::value);
static_assert(!passed_alike<int, size_t>());

#define SAME_NUMBER(ours, theirs) static_assert(int{ours} == static_cast<int>(theirs))

SAME_NUMBER(kNcclSuccess, ncclSuccess);
SAME_NUMBER(kNcclUnhandledCudaError, ncclUnhandledCudaError);
SAME_NUMBER(kNcclSystemError, ncclSystemError);
SAME_NUMBER(kNcclInternalError, ncclInternalError);
SAME_NUMBER(kNcclInvalidArgument, ncclInvalidArgument);
SAME_NUMBER(kNcclInvalidUsage, ncclInvalidUsage);
SAME_NUMBER(kNcclRemoteError, ncclRemoteError);
SAME_NUMBER(kNcclInProgress, ncclInProgress);

SAME_NUMBER(kNcclInt8, ncclInt8);
SAME_NUMBER(kNcclUint8, ncclUint8);
SAME_NUMBER(kNcclInt32, ncclInt32);
SAME_NUMBER(kNcclUint32, ncclUint32);
SAME_NUMBER(kNcclInt64, ncclInt64);
SAME_NUMBER(kNcclUint64, ncclUint64);
SAME_NUMBER(kNcclFloat16, ncclFloat16);
SAME_NUMBER(kNcclFloat32, ncclFloat32);
SAME_NUMBER(kNcclFloat64, ncclFloat64);
SAME_NUMBER(kNcclBfloat16, ncclBfloat16);

SAME_NUMBER(kNcclSum, ncclSum);
SAME_NUMBER(kNcclProd, ncclProd);
SAME_NUMBER(kNcclMax, ncclMax);
SAME_NUMBER(kNcclMin, ncclMin);
SAME_NUMBER(kNcclAvg, ncclAvg);

SAME_NUMBER(kNcclWindowSymmetric, NCCL_WIN_COLL_SYMMETRIC);
#ifdef NCCL_WIN_REQUIRED_ALIGNMENT
static_assert(kNcclWindowAlignment == NCCL_WIN_REQUIRED_ALIGNMENT);
#endif
static_assert(sizeof(NcclUniqueId) == NCCL_UNIQUE_ID_BYTES);
static_assert(nccl_version(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH) == NCCL_VERSION_CODE);
static_assert(nccl_version(2, 8, 4) == NCCL_VERSION(2, 8, 4));

}  // namespace
}  // namespace symmoe
