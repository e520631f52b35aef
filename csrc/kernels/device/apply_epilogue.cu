// An epilogue of rows that are summed already, one block per row.

#include "kernels/device/columns.h"
#include "kernels/device/dev.h"
#include "kernels/device/epilogue_row.h"
#include "kernels/device/grid.h"
#include "kernels/device/launch.h"
#include "kernels/device/peer_grid.h"
#include "kernels/device/row_shares.h"

namespace symmoe::kernels {
namespace SYMMOE_PLATFORM {

constexpr int kEpilogueBlocksAtOnce = 3;  // of a multiprocessor, whose registers they share

// How many rows there are, for all threads of the block.
SYMMOE_DEVICE int64_t own_rows(const EpilogueLaunch& problem, ShareTable& shares) {
  if (problem.shares.sizes == nullptr) return problem.rows;
  read_shares(problem.shares, problem.world, nullptr, shares);
  const int64_t own = shares.count[problem.rank];
  return own <= problem.shares.output_rows ? own : 0;
}

template <typename Columns>
__global__ void __launch_bounds__(kMaxBlockThreads, row_blocks<Columns>(kEpilogueBlocksAtOnce))
    apply_epilogue(const EpilogueLaunch problem) {
  constexpr DType kType = Columns::kIn;
  SYMMOE_SHARED(EpilogueWork<Columns>, work);
  SYMMOE_SHARED(ShareTable, shares);
  const int64_t count = own_rows(problem, shares);
  const EpilogueRows rows{problem.steps, problem.output, problem.hidden};
  SYMMOE_UNROLL_BY(1)
  for (int64_t row = dev::block(); row < count; row += dev::blocks()) {
    const char* const source =
        static_cast<const char*>(problem.input) + row * problem.hidden * kBytes<kType>;
    for (int64_t group = 0; group * dev::threads() * Columns::kCount < problem.hidden; ++group) {
      const Columns columns(group, problem.hidden);
      if (!columns.any) break;
      const auto loaded = columns.load_fresh(source);
      const Addends<Columns> addends(rows, row, columns);
      float x[Columns::kCount];
      SYMMOE_UNROLL
      for (int i = 0; i < Columns::kCount; ++i) x[i] = loaded[i];
      take_sums(rows, row, columns, addends, x, work);
    }
    finish_row(rows, row, work);
  }
}

}  // namespace SYMMOE_PLATFORM

namespace {

using namespace SYMMOE_PLATFORM;

template <typename Columns>
int launch(const EpilogueLaunch& problem, int multiprocessors, void* stream) {
  const int64_t threads = peer_threads(problem.hidden);
  const int64_t blocks = std::min(problem.rows, useful_blocks(multiprocessors, threads));
  return dev::launch(apply_epilogue<Columns>, static_cast<unsigned>(blocks),
                     static_cast<unsigned>(threads), stream, problem);
}

template <DType kType>
int launch(const EpilogueLaunch& problem, int multiprocessors, void* stream) {
  const bool wide = bytes_to_boundary(problem.input) == 0 &&
                    is_wide<kType>(problem.steps, problem.output, problem.hidden);
  return wide ? launch<WideColumns<kType, kType>>(problem, multiprocessors, stream)
              : launch<NarrowColumns<kType, kType>>(problem, multiprocessors, stream);
}

}  // namespace

int launch_apply_epilogue(const EpilogueLaunch& problem, int multiprocessors, void* stream) {
  if (problem.rows == 0 || problem.hidden == 0) return 0;
  switch (problem.type) {
    case DType::kBFloat16:
      return launch<DType::kBFloat16>(problem, multiprocessors, stream);
    case DType::kFloat16:
      return launch<DType::kFloat16>(problem, multiprocessors, stream);
    case DType::kFloat32:
      break;
  }
  return launch<DType::kFloat32>(problem, multiprocessors, stream);
}

}  // namespace symmoe::kernels
