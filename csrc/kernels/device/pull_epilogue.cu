// pull_reduce with an epilogue: meets the other ranks, adds up their rows, one row per block, does
// to each what comes behind, and meets them again. Peers cannot tell it from pull_reduce: block i
// meets block i, and who reads which row between the two meetings is no affair of theirs.

#include "kernels/device/columns.h"
#include "kernels/device/dev.h"
#include "kernels/device/epilogue_row.h"
#include "kernels/device/grid.h"
#include "kernels/device/launch.h"
#include "kernels/device/peer_call.h"
#include "kernels/device/peer_grid.h"
#include "kernels/device/pull_share.h"

namespace symmoe::kernels {
namespace SYMMOE_PLATFORM {

// This block's rows of the own share.
template <typename Columns, typename AtOnce>
SYMMOE_DEVICE void pull_rows(const PullEpilogueLaunch& problem, const PeerCall& call,
                             EpilogueWork<Columns>& work) {
  constexpr int kPieces = AtOnce::kPieces;
  const PullLaunch& pull = problem.pull;
  const int64_t begin = call.shares.begin[pull.peers.rank];
  const EpilogueRows rows{problem.steps, pull.output, pull.hidden};
  SYMMOE_UNROLL_BY(1)
  for (int64_t row = dev::block(); row < call.pulled; row += dev::blocks()) {
    SYMMOE_UNROLL_BY(1)
    for (int64_t group = 0; group * dev::threads() * Columns::kCount < pull.hidden;
         group += kPieces) {
      Piece<Columns> pieces[kPieces];
      SYMMOE_UNROLL
      for (int i = 0; i < kPieces; ++i) {
        pieces[i] = piece_of<Columns>(pull, begin, row, group + i, true);
      }
      add_all_ranks<AtOnce>(pull, call, begin, pieces);
      SYMMOE_UNROLL
      for (Piece<Columns>& piece : pieces) {
        if (!piece.any) continue;
        const Columns columns(piece.group, pull.hidden);
        const Addends<Columns> addends(rows, row, columns);
        take_sums(rows, row, columns, addends, piece.sum, work);
      }
    }
    finish_row(rows, row, work);
  }
}

template <typename Columns, typename AtOnce>
__global__ void __launch_bounds__(kMaxBlockThreads, row_blocks<Columns>(kPeerBlocksAtOnce))
    pull_epilogue(const PullEpilogueLaunch problem) {
  SYMMOE_SHARED(PeerCall, call);
  SYMMOE_SHARED(EpilogueWork<Columns>, work);
  if (!begin_call(problem.pull, call) || !meet_at_entry(problem.pull, call)) return;
  pull_rows<Columns, AtOnce>(problem, call, work);
  meet_at_exit(problem.pull, call);
}

}  // namespace SYMMOE_PLATFORM

namespace {

using namespace SYMMOE_PLATFORM;

// The threads of pull_reduce, too: one per peer at least.
template <typename Columns, typename AtOnce>
int launch(const PullEpilogueLaunch& problem, void* stream) {
  const PullLaunch& pull = problem.pull;
  return dev::launch(pull_epilogue<Columns, AtOnce>, static_cast<unsigned>(pull.blocks),
                     static_cast<unsigned>(peer_threads(pull.hidden)), stream, problem);
}

template <DType kType>
int launch(const PullEpilogueLaunch& problem, void* stream) {
  const PullLaunch& pull = problem.pull;
  if (!is_wide<kType>(problem.steps, pull.output, pull.hidden)) {
    return launch<NarrowColumns<kType, kType>, OneByOne>(problem, stream);
  }
  const bool few = pull.mask != nullptr || pull.peers.world <= FewRanks::kRanks;
  return few ? launch<WideColumns<kType, kType>, FewRanks>(problem, stream)
             : launch<WideColumns<kType, kType>, ManyRanks>(problem, stream);
}

}  // namespace

int launch_pull_epilogue(const PullEpilogueLaunch& problem, int /*multiprocessors*/, void* stream) {
  switch (problem.pull.type) {
    case DType::kBFloat16:
      return launch<DType::kBFloat16>(problem, stream);
    case DType::kFloat16:
      return launch<DType::kFloat16>(problem, stream);
    case DType::kFloat32:
      break;
  }
  return launch<DType::kFloat32>(problem, stream);
}

}  // namespace symmoe::kernels
