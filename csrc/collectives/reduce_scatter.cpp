// Partial rows in windows -> every rank's own rows, summed in rank order, in the caller's memory.
//
// pull:   the partial rows are in a pool buffer already; each rank reads its own rows out of all
//         windows. One barrier, every byte read once and written once.
// staged: the same after a copy into the stage window of the rows that peers will read. The own
//         rows are read where they are.
#include <array>

#include "collectives/engine.h"
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

}  // namespace

bool Engine::reduce_scatter(const Plan& plan, Buffer& buffer, size_t offset, void* output,
                            int threads) {
  require_usable("reduce_scatter");
  Exchange exchange(endpoint(plan.role, plan.lane), "reduce_scatter");
  const Posting posting = posting_from(plan, buffer, offset);
  require_output_outside(plan, output);
  return guarded([&] {
    exchange.open();
    buffer.armed = false;
    buffer.last_epoch = exchange.next_epoch();
    const std::byte* own_rows = buffer.window.base + offset;
    const bool done = pull(exchange, plan, posting, own_rows, output, threads);
    if (done) counts_.pull.fetch_add(1, std::memory_order_relaxed);
    return done;
  });
}

bool Engine::reduce_scatter_staged(const Plan& plan, const void* input, void* output, int threads) {
  require_usable("reduce_scatter");
  Exchange exchange(endpoint(plan.role, plan.lane), "reduce_scatter");
  require_output_outside(plan, output);
  return guarded([&] {
    exchange.open();
    Posting posting{Posting::kNothing, 0, plan.signature, plan.text};
    if (world() > 1 && plan.rows > 0) {
      const auto stage = stage_for(plan, plan.input_bytes());
      posting.ordinal = stage == nullptr ? Posting::kNoWindow : stage->window.ordinal;
      if (stage != nullptr) {
        stage->last_epoch = exchange.next_epoch();
        stage_peers_rows(plan, static_cast<const std::byte*>(input), stage->window.base, threads);
      }
    }
    const bool done = pull(exchange, plan, posting, input, output, threads);
    if (done) counts_.staged.fetch_add(1, std::memory_order_relaxed);
    return done;
  });
}

bool Engine::pull(Exchange& exchange, const Plan& plan, const Posting& posting,
                  const void* own_rows, void* output, int threads) {
  const bool all_have_windows = exchange.meet(posting);
  if (all_have_windows && plan.own_count() > 0) {
    const size_t begin = plan.bytes_of(plan.own_begin());
    std::array<const void*, kMaxRanks> sources{};
    for (int rank = 0; rank < world(); ++rank) {
      const std::byte* rows = rank == rank_ ? static_cast<const std::byte*>(own_rows)
                                            : exchange.rows_of(rank, *source_);
      sources[static_cast<size_t>(rank)] = rows + begin;
    }
    kernels::rank_reduce({.sources = sources.data(),
                          .ranks = world(),
                          .output = output,
                          .count = plan.own_count() * plan.hidden,
                          .type = plan.dtype},
                         threads);
  }
  exchange.finish();
  return all_have_windows;
}

}  // namespace symmoe
