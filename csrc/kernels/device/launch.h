#pragma once

#include <cstdint>

#include "base/dtype.h"

// What the device kernels are asked to do: plain structures that host code fills in and the
// launchers of a back end read. Pointers are device memory; bounds are checked by the host code
// beforehand, but for values that live on the device.
namespace symmoe::kernels {

// Where a kernel leaves word of a wrong value that it met: memory that the host reads while kernels
// run (pinned), zero at first. The first fault stays until the host sets `kind` to kNone; the
// kernel goes on without touching anything out of bounds.
struct Fault {
  enum Kind : uint32_t { kNone = 0, kIndexOutOfRange = 1 };
  uint32_t kind;  // stored last; the host reads it first
  uint32_t being_written;
  int64_t token;
  int64_t slot;
  int64_t value;
};

// The formula of kernels::TopkReduceArgs (kernels/cpu/kernels.h), to the same bits.
struct TopkReduceLaunch {
  const void* input = nullptr;    // [tokens, slots, hidden]; with index: [pairs, hidden]
  const void* weights = nullptr;  // [tokens, slots], or nullptr: a plain sum
  const void* index = nullptr;    // [tokens, slots], row of input, -1 = slot absent; or nullptr
  void* output = nullptr;         // [tokens, hidden]
  Fault* fault = nullptr;         // for index values beyond -1..pairs-1, which count as absent
  int64_t tokens = 0;
  int64_t slots = 0;
  int64_t hidden = 0;
  int64_t pairs = 0;
  float scale = 1.0f;
  bool has_scale = false;
  DType input_type = DType::kBFloat16;
  DType output_type = DType::kBFloat16;
  DType weights_type = DType::kFloat32;  // fp32 or the input's
  bool index_is_64bit = false;
};

// output[i] = round(source_0[i] + source_1[i] + ...), added in fp32 in rank order. Rank r's source
// is `own` for r == own_rank, else gathered + r * stride (elements); the gathered rows of own_rank
// are not read. The output may be exactly one of the sources.
struct RankReduceLaunch {
  const void* own = nullptr;
  const void* gathered = nullptr;
  void* output = nullptr;
  int64_t count = 0;
  int64_t stride = 0;
  int ranks = 0;
  int own_rank = 0;
  DType type = DType::kBFloat16;
};

// Any alignment; the two must not overlap.
struct CopyLaunch {
  const void* source = nullptr;
  void* destination = nullptr;
  int64_t bytes = 0;
};

// Each queues one kernel on `stream` and returns the runtime's error code, 0 if there was none.
// `multiprocessors` sizes the grid. Nothing is launched for an empty problem.
int launch_topk_reduce(const TopkReduceLaunch& launch, int multiprocessors, void* stream);
int launch_rank_reduce(const RankReduceLaunch& launch, int multiprocessors, void* stream);
int launch_copy_to_window(const CopyLaunch& launch, int multiprocessors, void* stream);

}  // namespace symmoe::kernels
