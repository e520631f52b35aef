// The sum of all ranks' rows, in rank order, in fp32, rounded once. The sum starts as -0, to which
// the first term adds exactly, sign of zero included. Ordinary loads, since peers wrote the rows.
// A thread reads its elements of every rank before it writes them: the output may be a source.

#include "kernels/device/dev.h"
#include "kernels/device/elements.h"
#include "kernels/device/grid.h"
#include "kernels/device/launch.h"

namespace symmoe::kernels {
namespace SYMMOE_PLATFORM {

constexpr int kRanksAtOnce = 4;   // whose rows are loaded before the first of them is added
constexpr int kBlocksAtOnce = 4;  // of a multiprocessor, whose registers they share

template <DType kType>
constexpr int kVector = 16 / kBytes<kType>;  // elements

template <DType kType>
SYMMOE_DEVICE const char* source(const RankReduceLaunch& problem, int rank, int64_t element) {
  const int64_t offset = element * kBytes<kType>;
  if (rank == problem.own_rank) return static_cast<const char*>(problem.own) + offset;
  return static_cast<const char*>(problem.gathered) + rank * problem.stride * kBytes<kType> +
         offset;
}

template <DType kType>
SYMMOE_DEVICE void sum_element(const RankReduceLaunch& problem, int64_t element) {
  float sum = -0.0f;
  SYMMOE_UNROLL_BY(kRanksAtOnce)
  for (int rank = 0; rank < problem.ranks; ++rank) {
    const auto bits = dev::load<ElementBits<kType>>(source<kType>(problem, rank, element));
    sum = dev::add(sum, decode<kType>(bits));
  }
  dev::store(static_cast<char*>(problem.output) + element * kBytes<kType>, encode<kType>(sum));
}

template <DType kType>
SYMMOE_DEVICE void sum_vector(const RankReduceLaunch& problem, int64_t element) {
  using Vector = Elements<kType, kVector<kType>>;
  float sum[kVector<kType>];
  SYMMOE_UNROLL
  for (float& value : sum) value = -0.0f;
  for (int first = 0; first < problem.ranks; first += kRanksAtOnce) {
    Vector row[kRanksAtOnce];
    SYMMOE_UNROLL
    for (int r = 0; r < kRanksAtOnce; ++r) {
      row[r] = Vector::negative_zeros();
      if (first + r < problem.ranks) {
        row[r] = Vector::load(source<kType>(problem, first + r, element));
      }
    }
    SYMMOE_UNROLL
    for (int r = 0; r < kRanksAtOnce; ++r) {
      SYMMOE_UNROLL
      for (int i = 0; i < kVector<kType>; ++i) sum[i] = dev::add(sum[i], row[r][i]);
    }
  }
  store_elements<kType>(static_cast<char*>(problem.output) + element * kBytes<kType>, sum);
}

// `vectors` whole vectors follow the first `head` elements; what is left over stands at the end.
template <DType kType>
__global__ void __launch_bounds__(kMaxBlockThreads, kBlocksAtOnce)
    rank_reduce(const RankReduceLaunch problem, const int64_t head, const int64_t vectors) {
  const int64_t thread = int64_t{dev::block()} * dev::threads() + dev::thread();
  const int64_t threads = int64_t{dev::blocks()} * dev::threads();
  SYMMOE_UNROLL_BY(1)
  for (int64_t vector = thread; vector < vectors; vector += threads) {
    sum_vector<kType>(problem, head + vector * kVector<kType>);
  }
  const int64_t in_vectors = vectors * kVector<kType>;
  SYMMOE_UNROLL_BY(1)
  for (int64_t element = thread; element < problem.count - in_vectors; element += threads) {
    sum_element<kType>(problem, element < head ? element : element + in_vectors);
  }
}

}  // namespace SYMMOE_PLATFORM

namespace {

using namespace SYMMOE_PLATFORM;

// Elements before the first vector, if all sources and the output have it in the same place.
template <DType kType>
int64_t elements_before_vectors(const RankReduceLaunch& problem) {
  const int64_t to_boundary = bytes_to_boundary(problem.output);
  const bool alike = bytes_to_boundary(problem.own) == to_boundary &&
                     (problem.ranks == 1 || (bytes_to_boundary(problem.gathered) == to_boundary &&
                                             problem.stride * kBytes<kType> % kBoundary == 0));
  if (!alike || to_boundary % kBytes<kType> != 0) return problem.count;
  return std::min(problem.count, to_boundary / kBytes<kType>);
}

template <DType kType>
int launch(const RankReduceLaunch& problem, int multiprocessors, void* stream) {
  const int64_t head = elements_before_vectors<kType>(problem);
  const int64_t vectors = (problem.count - head) / kVector<kType>;
  const int64_t busiest = std::max(vectors, problem.count - vectors * kVector<kType>);
  const int64_t blocks = std::min(divided_up(busiest, kMaxBlockThreads),
                                  useful_blocks(multiprocessors, kMaxBlockThreads));
  return dev::launch(rank_reduce<kType>, static_cast<unsigned>(blocks), kMaxBlockThreads, stream,
                     problem, head, vectors);
}

}  // namespace

int launch_rank_reduce(const RankReduceLaunch& problem, int multiprocessors, void* stream) {
  if (problem.count == 0) return 0;
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
