#pragma once

#include <cstddef>

#include "runtime/nccl/abi.h"

namespace symmoe {

// NCCL's functions, named as NCCL names them without the prefix: init_rank is ncclCommInitRank.
// Those marked "or null" are not in every version.
struct NcclFunctions {
  NcclResult (*get_version)(int* version);
  const char* (*get_error_string)(NcclResult result);
  const char* (*get_last_error)(NcclComm comm);  // or null

  NcclResult (*get_unique_id)(NcclUniqueId* id);
  NcclResult (*comm_init_rank)(NcclComm* comm, int ranks, NcclUniqueId id, int rank);
  NcclResult (*comm_destroy)(NcclComm comm);
  NcclResult (*comm_abort)(NcclComm comm);
  NcclResult (*comm_get_async_error)(NcclComm comm, NcclResult* result);
  NcclResult (*comm_count)(NcclComm comm, int* ranks);
  NcclResult (*comm_cu_device)(NcclComm comm, int* device);
  NcclResult (*comm_user_rank)(NcclComm comm, int* rank);

  NcclResult (*group_start)();
  NcclResult (*group_end)();
  NcclResult (*reduce_scatter)(const void* send, void* receive, size_t count, NcclDataType type,
                               NcclRedOp op, NcclComm comm, NcclStream stream);
  NcclResult (*all_gather)(const void* send, void* receive, size_t count, NcclDataType type,
                           NcclComm comm, NcclStream stream);
  NcclResult (*reduce)(const void* send, void* receive, size_t count, NcclDataType type,
                       NcclRedOp op, int root, NcclComm comm, NcclStream stream);
  NcclResult (*broadcast)(const void* send, void* receive, size_t count, NcclDataType type,
                          int root, NcclComm comm, NcclStream stream);
  NcclResult (*send)(const void* send, size_t count, NcclDataType type, int peer, NcclComm comm,
                     NcclStream stream);
  NcclResult (*receive)(void* receive, size_t count, NcclDataType type, int peer, NcclComm comm,
                        NcclStream stream);

  NcclResult (*mem_alloc)(void** memory, size_t bytes);  // or null
  NcclResult (*mem_free)(void* memory);                  // or null
  NcclResult (*window_register)(NcclComm comm, void* memory, size_t bytes, NcclWindow* window,
                                int flags);                           // or null
  NcclResult (*window_deregister)(NcclComm comm, NcclWindow window);  // or null
  NcclResult (*get_lsa_device_pointer)(NcclWindow window, size_t offset, int peer,
                                       void** pointer);  // or null
};

}  // namespace symmoe
