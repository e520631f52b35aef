// How a top-k sum is launched: which kernel for which problem, in how many blocks.

#include "kernels/device/dev.h"
#include "kernels/device/grid.h"
#include "kernels/device/launch.h"
#include "kernels/device/topk_kernel.h"

namespace symmoe::kernels {
namespace {

using namespace SYMMOE_PLATFORM;

// How a launch is cut into blocks: `chunks` of the columns, equally large.
template <typename Columns, int kSlots>
int launch(const TopkReduceLaunch& problem, int multiprocessors, void* stream) {
  constexpr int64_t kWarp = 32;
  const int64_t groups = divided_up(problem.hidden, Columns::kCount * kGroups<kSlots>);
  const int64_t chunks = divided_up(groups, kMaxBlockThreads);
  const int64_t threads = divided_up(divided_up(groups, chunks), kWarp) * kWarp;
  const int64_t at_a_time =
      std::clamp<int64_t>(useful_blocks(multiprocessors, threads) / chunks, 1, problem.tokens);
  return dev::launch(topk_reduce<Columns, kSlots>, static_cast<unsigned>(at_a_time * chunks),
                     static_cast<unsigned>(threads), stream, problem, static_cast<int>(chunks));
}

template <DType kIn, DType kOut>
bool all_rows_aligned(const TopkReduceLaunch& problem) {
  return bytes_to_boundary(problem.input) == 0 && bytes_to_boundary(problem.output) == 0 &&
         problem.hidden * kBytes<kIn> % kBoundary == 0 &&
         problem.hidden * kBytes<kOut> % kBoundary == 0;
}

// The numbers of slots that models use get code of their own, where the types are one.
template <DType kIn, DType kOut>
int launch_typed(const TopkReduceLaunch& problem, int multiprocessors, void* stream) {
  if (!all_rows_aligned<kIn, kOut>(problem)) {
    return launch<NarrowColumns<kIn, kOut>, 0>(problem, multiprocessors, stream);
  }
  using Columns = WideColumns<kIn, kOut>;
  if constexpr (kIn == kOut) {
    switch (problem.slots) {
      case 1:
        return launch<Columns, 1>(problem, multiprocessors, stream);
      case 2:
        return launch<Columns, 2>(problem, multiprocessors, stream);
      case 4:
        return launch<Columns, 4>(problem, multiprocessors, stream);
      case 6:
        return launch<Columns, 6>(problem, multiprocessors, stream);
      case 8:
        return launch<Columns, 8>(problem, multiprocessors, stream);
      case 16:
        return launch<Columns, 16>(problem, multiprocessors, stream);
      case 22:
        return launch<Columns, 22>(problem, multiprocessors, stream);
      default:
        break;
    }
  }
  return launch<Columns, 0>(problem, multiprocessors, stream);
}

template <DType kIn>
int launch_from(const TopkReduceLaunch& problem, int multiprocessors, void* stream) {
  switch (problem.output_type) {
    case DType::kBFloat16:
      return launch_typed<kIn, DType::kBFloat16>(problem, multiprocessors, stream);
    case DType::kFloat16:
      return launch_typed<kIn, DType::kFloat16>(problem, multiprocessors, stream);
    case DType::kFloat32:
      break;
  }
  return launch_typed<kIn, DType::kFloat32>(problem, multiprocessors, stream);
}

}  // namespace

int launch_topk_reduce(const TopkReduceLaunch& problem, int multiprocessors, void* stream) {
  if (problem.tokens == 0 || problem.hidden == 0) return 0;
  switch (problem.input_type) {
    case DType::kBFloat16:
      return launch_from<DType::kBFloat16>(problem, multiprocessors, stream);
    case DType::kFloat16:
      return launch_from<DType::kFloat16>(problem, multiprocessors, stream);
    case DType::kFloat32:
      break;
  }
  return launch_from<DType::kFloat32>(problem, multiprocessors, stream);
}

}  // namespace symmoe::kernels
