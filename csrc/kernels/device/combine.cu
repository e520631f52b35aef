// From expert output to the own share in one launch: top-k sums into the own window, then the pull
// of pull_reduce.cu. Block i sums unit i of every rank's share, which is what the peers' block i
// pulls, so that blocks need to meet only their like.

#include "kernels/device/columns.h"
#include "kernels/device/dev.h"
#include "kernels/device/grid.h"
#include "kernels/device/launch.h"
#include "kernels/device/peer_call.h"
#include "kernels/device/peer_grid.h"
#include "kernels/device/pull_share.h"
#include "kernels/device/topk_kernel.h"

namespace symmoe::kernels {
namespace SYMMOE_PLATFORM {

template <typename Columns, int kSlots>
SYMMOE_DEVICE void sum_units(const CombineLaunch& problem, int64_t begin, const Units& units,
                             SlotTable<kTile<kSlots>>& table) {
  static_assert(kGroups<kSlots> == 1);
  for (uint32_t unit = dev::block(); unit < units.count; unit += dev::blocks()) {
    const int64_t token = begin + units.row(unit);
    if (!writes(problem.sum.routing, token)) continue;
    for (int part = 0; part < kPiecesPerUnit<Columns>; ++part) {
      sum_token<Columns, kSlots>(problem.sum, token, units.group<Columns>(unit, part), table);
    }
  }
}

template <typename Columns, int kSlots, typename AtOnce>
__global__ void __launch_bounds__(kMaxBlockThreads, kPeerBlocksAtOnce)
    combine(const CombineLaunch problem, const int chunks) {
  SYMMOE_SHARED(PeerCall, call);
  SYMMOE_SHARED(SlotTable<kTile<kSlots>>, table);
  if (!begin_call(problem.pull, call)) return;
  for (int rank = 0; rank < problem.pull.peers.world; ++rank) {
    sum_units<Columns, kSlots>(problem, call.shares.begin[rank],
                               Units(call.shares.count[rank], chunks), table);
  }
  if (!meet_at_entry(problem.pull, call)) return;
  pull_share<typename Columns::OfOutput, AtOnce>(problem.pull, call, chunks);
  meet_at_exit(problem.pull, call);
}

}  // namespace SYMMOE_PLATFORM

namespace {

using namespace SYMMOE_PLATFORM;

template <typename Columns, int kSlots, typename AtOnce>
int launch(const CombineLaunch& problem, void* stream) {
  const int64_t hidden = problem.pull.hidden;
  return dev::launch(combine<Columns, kSlots, AtOnce>, static_cast<unsigned>(problem.pull.blocks),
                     static_cast<unsigned>(peer_threads(hidden)), stream, problem,
                     static_cast<int>(peer_chunks(hidden)));
}

template <DType kIn, DType kOut>
bool all_rows_aligned(const CombineLaunch& problem) {
  return bytes_to_boundary(problem.sum.input) == 0 && bytes_to_boundary(problem.pull.output) == 0 &&
         problem.pull.hidden * kBytes<kIn> % kBoundary == 0 &&
         problem.pull.hidden * kBytes<kOut> % kBoundary == 0;
}

template <DType kIn, DType kOut>
int launch_typed(const CombineLaunch& problem, void* stream) {
  if (!all_rows_aligned<kIn, kOut>(problem)) {
    return launch<NarrowColumns<kIn, kOut>, 0, OneByOne>(problem, stream);
  }
  using Columns = WideColumns<kIn, kOut>;
  constexpr int kUsualSlots = 8;
  if constexpr (kIn == kOut) {
    if (problem.sum.slots == kUsualSlots) {
      return launch<Columns, kUsualSlots, ManyRanks>(problem, stream);
    }
  }
  return launch<Columns, 0, ManyRanks>(problem, stream);
}

template <DType kIn>
int launch_from(const CombineLaunch& problem, void* stream) {
  switch (problem.pull.type) {
    case DType::kBFloat16:
      return launch_typed<kIn, DType::kBFloat16>(problem, stream);
    case DType::kFloat16:
      return launch_typed<kIn, DType::kFloat16>(problem, stream);
    case DType::kFloat32:
      break;
  }
  return launch_typed<kIn, DType::kFloat32>(problem, stream);
}

}  // namespace

int launch_combine(const CombineLaunch& problem, int /*multiprocessors*/, void* stream) {
  switch (problem.sum.input_type) {
    case DType::kBFloat16:
      return launch_from<DType::kBFloat16>(problem, stream);
    case DType::kFloat16:
      return launch_from<DType::kFloat16>(problem, stream);
    case DType::kFloat32:
      break;
  }
  return launch_from<DType::kFloat32>(problem, stream);
}

}  // namespace symmoe::kernels
