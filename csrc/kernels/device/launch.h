#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/device/signal_page.h"
#include "kernels/epilogue.h"

// What the device kernels are asked to do: plain structures that host code fills in and the
// launchers of a back end read. Pointers are device memory; bounds are checked by the host code
// beforehand, but for values that live on the device.
namespace symmoe::kernels {

// Where a kernel that waits for its peers stands.
enum Phase : int { kEntry = 0, kExit = 1 };

// Where a kernel leaves word of what went wrong: memory that the host reads while kernels run
// (pinned), zero at first. The first fault stays until the host sets `kind` to kNone, or a
// worse one comes; the kernel goes on without touching anything out of bounds.
struct Fault {
  enum Kind : uint32_t {
    kNone = 0,
    // Wrong values in the caller's tensors. All ranks go on together.  subject, detail, value:
    kIndexOutOfRange = 1,  // token, slot, index: counts as absent
    kExpertRankWrong = 2,  // expert, world, rank: the expert counts as nobody's
    kSizesWrong = 3,       // rank, limit, size: no row is read or written
    // The ranks no longer go together: no kernel of this role and lane will ever do anything.
    kFirstFatal = 4,
    kCallsDiffer = kFirstFatal,  // rank, own signature, its signature
    kValuesDiffer = 5,           // rank, own hash, its hash: of device sizes or of masks
    kNoWindow = 6,               // rank, ordinal, offset: this rank has no such window of that rank
    kPeerLate = 7,               // rank, Phase, epoch: it did not come in time
    kPeerGaveUp = 8,             // rank, Phase, epoch: it met one of these faults
  };
  uint32_t kind;  // stored last; the host reads it first
  uint32_t being_written;
  int64_t subject;
  int64_t detail;
  int64_t value;
};

// Which rank holds which of a batch's experts, for kernels that leave out what others hold.
struct RoutingView {
  const void* ids = nullptr;                // [tokens, slots]: experts; or nullptr: all present
  const int32_t* expert_to_rank = nullptr;  // [experts], -1: nobody
  const uint64_t* mask = nullptr;           // [tokens], or nullptr: every row is written
  int64_t experts = 0;
  int rank = 0;
  bool ids_are_64bit = false;
};

// Which rows of every rank's window are whose. Rows of no rank, behind a rank's own or behind all,
// are padding: they and what belongs to them (ids, an index) may hold anything.
struct RowShares {
  // Device memory [world]: rows of each rank; nullptr: begins and counts say it.
  const int32_t* sizes = nullptr;
  int64_t padded_to = 0;  // of `sizes`: rank r's rows begin at r * padded_to; 0: one after another
  int64_t rows = 0;       // of `sizes`: the rows that the window holds
  int64_t output_rows = 0;         // of `sizes`: the rows that the output holds
  int64_t begins[kMaxPeers] = {};  // in order: no rank's is before that of the rank in front
  int64_t counts[kMaxPeers] = {};
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
  // Of `ranks` ranks; other tokens are neither read nor written. 0: every token is summed.
  RowShares shares = {};
  int ranks = 0;
  // A slot whose expert another rank holds, or nobody, is absent: its row, weight and index are not
  // read. A token without this rank's bit in the mask is not written.
  RoutingView routing = {};
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

// A hash of all masks, which ranks compare. All zero when it is allocated; kernels leave it
// ready for the next launch.
struct MaskHash {
  uint64_t value;
  uint64_t sum;  // of the blocks that are done
  uint32_t blocks_done;
  uint32_t unused;
};

// mask[row]: bit r is set if rank r holds one of the row's experts; 0 for rows of no rank, whose
// ids are not read. Ids below 0 or from `experts` on are nobody's. With sizes that do not fit no
// rank has rows: that is the pulling kernel's to report.
struct RouteMaskLaunch {
  const void* ids = nullptr;                // [rows, slots]
  const int32_t* expert_to_rank = nullptr;  // [experts], each -1 (nobody) to world - 1
  uint64_t* mask = nullptr;                 // [rows]
  MaskHash* hash = nullptr;                 // of the masks and their order
  Fault* fault = nullptr;
  RowShares shares = {};
  int64_t rows = 0;
  int64_t slots = 0;
  int64_t experts = 0;
  int world = 0;
  bool ids_are_64bit = false;
};

// Where kernels find the other ranks.
struct PeerGroup {
  // Device memory [world]: for each rank the address here of the memory that holds its pages.
  void* const* signals = nullptr;
  uint64_t page_offset = 0;  // of the call's SignalPage in that memory, in bytes
  // Device memory [kMaxOrdinals][world]: the address here of every rank's window `ordinal`, in row
  // ordinal % kMaxOrdinals; null where there is none. Addresses are multiples of 16.
  const void* const* windows = nullptr;
  Fault* fault = nullptr;
  uint64_t deadline_ns = 0;  // for each wait
  int rank = 0;
  int world = 1;
};

// output[i] = round(the sum of every rank's row begins[rank] + i, in rank order, in fp32), between
// an entry barrier, after which all ranks' windows hold their rows, and an exit barrier, after
// which all ranks have read them. With a mask only the rows of ranks with their bit in it are read;
// none: +0. The output may be the own share of the own window.
//
// All ranks launch with the same `blocks`, and with the same facts behind `signature`; of the rest
// only ordinal, offset and output may differ. The grid is never derived from what may differ.
struct PullLaunch {
  PeerGroup peers = {};
  RowShares shares = {};
  void* output = nullptr;               // [counts[rank], hidden]
  const uint64_t* mask = nullptr;       // [rows of the window], or nullptr: all ranks
  const MaskHash* mask_hash = nullptr;  // with a mask
  int64_t hidden = 0;
  uint64_t offset = 0;     // of the rows in the own window, a multiple of 16
  uint32_t ordinal = 0;    // of the own window
  uint32_t signature = 0;  // of the call
  int blocks = 1;          // 1 to kMaxBlocks; see peer_blocks in peer_grid.h
  DType type = DType::kBFloat16;
};

// topk_reduce into the own window, and then pull_reduce, in one launch: each block sums slice i of
// every rank's share and then pulls slice i of its own. `sum.output` is the own window at
// `pull.offset`; sum.output_type, sum.hidden, the masks and, whatever `sum` says, the shares are
// those of `pull`.
struct CombineLaunch {
  TopkReduceLaunch sum = {};
  PullLaunch pull = {};
};

// The longest row that an epilogue with a norm or quantising can take: a block keeps it in its own
// memory meanwhile.
constexpr int64_t kEpilogueRowBytes = int64_t{40} << 10;

// An epilogue of rows that are summed already, to the bits of the CPU's (kernels/cpu/epilogue.h).
// Memory that is written (output, residual, scales) overlaps nothing else, but for the output,
// which may be exactly the input unless it is quantised.
struct EpilogueLaunch {
  const void* input = nullptr;  // [rows, hidden]
  void* output = nullptr;       // [rows, hidden], as the rows, or bytes
  Epilogue steps = {};
  int64_t rows = 0;
  int64_t hidden = 0;
  DType type = DType::kBFloat16;
  // With sizes on the device `rows` is what there may be at most, and the rows of `rank` of `world`
  // are all there is: none with sizes that do not fit, which the kernel in front has reported.
  RowShares shares = {};
  int rank = 0;
  int world = 1;
};

// pull_reduce with an epilogue on this rank, whose peers need not have one: they meet pull_reduce
// and this alike. The output is one of the epilogue; it may be the own share of the own window
// unless it is quantised.
struct PullEpilogueLaunch {
  PullLaunch pull = {};
  Epilogue steps = {};
};

// Each queues one kernel on `stream` and returns the runtime's error code, 0 if there was none.
// `multiprocessors` sizes the grid, but not that of kernels that wait for peers. Nothing is
// launched for an empty problem; one that waits for peers is never empty.
int launch_topk_reduce(const TopkReduceLaunch& launch, int multiprocessors, void* stream);
int launch_rank_reduce(const RankReduceLaunch& launch, int multiprocessors, void* stream);
int launch_copy_to_window(const CopyLaunch& launch, int multiprocessors, void* stream);
int launch_route_mask(const RouteMaskLaunch& launch, int multiprocessors, void* stream);
int launch_pull_reduce(const PullLaunch& launch, int multiprocessors, void* stream);
int launch_combine(const CombineLaunch& launch, int multiprocessors, void* stream);
int launch_apply_epilogue(const EpilogueLaunch& launch, int multiprocessors, void* stream);
int launch_pull_epilogue(const PullEpilogueLaunch& launch, int multiprocessors, void* stream);

}  // namespace symmoe::kernels
