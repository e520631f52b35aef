// Partial rows in windows -> every rank's own rows, summed in rank order, in the caller's memory.
//
// pull:   the partial rows are in a pool buffer already; each rank reads its own rows out of all
//         windows. One barrier, every byte read once and written once.
// staged: the same after a copy into the stage window of the rows that peers will read. The own
//         rows are read where they are.
#include <array>

#include "collectives/engine.h"
#include "collectives/operation.h"
#include "kernels/cpu/kernels.h"

namespace symmoe {
namespace {

// Copies the rows of every other rank: nobody else reads the own ones.
void stage_peers_rows(const Plan& plan, const std::byte* input, std::byte* stage, int threads) {
  for (size_t r = 0; r < plan.counts.size(); ++r) {
    if (static_cast<int>(r) == plan.rank) continue;
    const size_t begin = plan.bytes_of(plan.begins[r]);
    kernels::copy(stage + begin, input + begin, plan.bytes_of(plan.counts[r]), threads);
  }
}

void pull(Exchange& exchange, WindowSource& source, const Plan& plan, const std::byte* own_rows,
          std::byte* output, int threads) {
  if (plan.output_bytes() == 0) return;
  const size_t begin = plan.bytes_of(plan.own_begin());
  const int world = static_cast<int>(plan.counts.size());
  std::array<const void*, kMaxRanks> sources{};
  for (int rank = 0; rank < world; ++rank) {
    const std::byte* rows = rank == plan.rank ? own_rows : exchange.rows_of(rank, source);
    sources[static_cast<size_t>(rank)] = rows + begin;
  }
  kernels::rank_reduce({.sources = sources.data(),
                        .ranks = world,
                        .output = output,
                        .count = plan.own_count() * plan.hidden,
                        .type = plan.dtype},
                       threads);
}

}  // namespace

const Operation kReduceScatter{Plan::Kind::kReduceScatter, stage_peers_rows, pull};

bool Engine::reduce_scatter(const Plan& plan, Buffer& buffer, size_t offset, void* output,
                            int threads) {
  return from_pool(kReduceScatter, plan, buffer, offset, output, threads, counts_.pull);
}

bool Engine::reduce_scatter_staged(const Plan& plan, const void* input, void* output, int threads) {
  return from_memory(kReduceScatter, plan, input, output, threads, counts_.staged);
}

}  // namespace symmoe
