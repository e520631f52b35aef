// The own share of what all ranks have in their windows: meets them, pulls their rows, adds them in
// rank order, and meets them again.

#include "kernels/device/columns.h"
#include "kernels/device/dev.h"
#include "kernels/device/grid.h"
#include "kernels/device/launch.h"
#include "kernels/device/peer_call.h"
#include "kernels/device/peer_grid.h"
#include "kernels/device/pull_share.h"

namespace symmoe::kernels {
namespace SYMMOE_PLATFORM {

template <typename Columns, typename AtOnce>
__global__ void __launch_bounds__(kMaxBlockThreads, kPeerBlocksAtOnce)
    pull_reduce(const PullLaunch problem, const int chunks) {
  SYMMOE_SHARED(PeerCall, call);
  if (!begin_call(problem, call) || !meet_at_entry(problem, call)) return;
  pull_share<Columns, AtOnce>(problem, call, chunks);
  meet_at_exit(problem, call);
}

}  // namespace SYMMOE_PLATFORM

namespace {

using namespace SYMMOE_PLATFORM;

template <typename Columns, typename AtOnce>
int launch(const PullLaunch& problem, void* stream) {
  return dev::launch(pull_reduce<Columns, AtOnce>, static_cast<unsigned>(problem.blocks),
                     static_cast<unsigned>(peer_threads(problem.hidden)), stream, problem,
                     static_cast<int>(peer_chunks(problem.hidden)));
}

// Which kernel it is may differ between ranks; how rows are shared out among blocks does not.
template <DType kType>
int launch(const PullLaunch& problem, void* stream) {
  const bool aligned =
      bytes_to_boundary(problem.output) == 0 && problem.hidden * kBytes<kType> % kBoundary == 0;
  if (!aligned) return launch<NarrowColumns<kType, kType>, OneByOne>(problem, stream);
  const bool few = problem.mask != nullptr || problem.peers.world <= FewRanks::kRanks;
  return few ? launch<WideColumns<kType, kType>, FewRanks>(problem, stream)
             : launch<WideColumns<kType, kType>, ManyRanks>(problem, stream);
}

}  // namespace

int launch_pull_reduce(const PullLaunch& problem, int /*multiprocessors*/, void* stream) {
  switch (problem.type) {
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
