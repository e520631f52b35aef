// Partial rows in windows -> every rank's own rows, summed in rank order, in the caller's memory.
//
// pull:   the partial rows are in a pool buffer already; each rank reads its own rows out of all
//         windows. One barrier, every byte read once and written once.
// staged: the same after a copy into the stage window of the rows that peers will read. The own
//         rows are read where they are.
// routed: either of them where it is known which ranks have anything for which row: no other row is
//         written, copied or read. The ranks compare the masks by their hash in the one barrier of
//         the call, so a row that its owner reads was written by the rank it is read from.
#include <array>

#include "collectives/engine.h"
#include "collectives/operation.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/routing.h"

namespace symmoe {
namespace {

// Copies the rows of every other rank: nobody else reads the own ones.
void stage_peers_rows(const Plan& plan, const Routing* /*none*/, const std::byte* input,
                      std::byte* stage, int threads) {
  for (size_t r = 0; r < plan.counts.size(); ++r) {
    if (static_cast<int>(r) == plan.rank) continue;
    const size_t begin = plan.bytes_of(plan.begins[r]);
    kernels::copy(stage + begin, input + begin, plan.bytes_of(plan.counts[r]), threads);
  }
}

using Sources = std::array<const void*, kMaxRanks>;

// Where the own rows are in each rank's window.
void find_sources(Exchange& exchange, WindowSource& source, const Plan& plan,
                  const std::byte* own_rows, Sources& sources) {
  const size_t begin = plan.bytes_of(plan.own_begin());
  const int world = static_cast<int>(plan.counts.size());
  for (int rank = 0; rank < world; ++rank) {
    const std::byte* rows = rank == plan.rank ? own_rows : exchange.rows_of(rank, source);
    sources[static_cast<size_t>(rank)] = rows + begin;
  }
}

// The sum and the epilogue in one pass: each row of each rank is read once.
void finish(const Call& call, const Sources& sources) {
  const Plan& plan = call.plan;
  const uint64_t* const masks = call.routing == nullptr ? nullptr : call.routing->masks();
  kernels::reduce_with_epilogue({.sources = sources.data(),
                                 .masks = masks == nullptr ? nullptr : masks + plan.own_begin(),
                                 .ranks = static_cast<int>(plan.counts.size()),
                                 .output = call.output,
                                 .rows = plan.own_count(),
                                 .hidden = plan.hidden,
                                 .type = plan.dtype,
                                 .steps = *call.epilogue},
                                call.threads);
}

void pull(Exchange& exchange, WindowSource& source, const Call& call, const std::byte* own_rows) {
  const Plan& plan = call.plan;
  if (plan.output_bytes() == 0) return;
  Sources sources{};
  find_sources(exchange, source, plan, own_rows, sources);
  if (call.epilogue != nullptr) return finish(call, sources);
  kernels::rank_reduce({.sources = sources.data(),
                        .ranks = static_cast<int>(plan.counts.size()),
                        .output = call.output,
                        .count = plan.own_count() * plan.hidden,
                        .type = plan.dtype},
                       call.threads);
}

void stage_routed_rows(const Plan& plan, const Routing* routing, const std::byte* input,
                       std::byte* stage, int threads) {
  for (size_t r = 0; r < plan.counts.size(); ++r) {
    if (static_cast<int>(r) == plan.rank) continue;
    const size_t begin = plan.bytes_of(plan.begins[r]);
    kernels::copy_routed(stage + begin, input + begin, routing->masks() + plan.begins[r], plan.rank,
                         plan.counts[r], plan.row_bytes(), threads);
  }
}

void pull_routed(Exchange& exchange, WindowSource& source, const Call& call,
                 const std::byte* own_rows) {
  const Plan& plan = call.plan;
  if (plan.output_bytes() == 0) return;
  Sources sources{};
  find_sources(exchange, source, plan, own_rows, sources);
  if (call.epilogue != nullptr) return finish(call, sources);
  kernels::routed_reduce({.sources = sources.data(),
                          .masks = call.routing->masks() + plan.own_begin(),
                          .ranks = static_cast<int>(plan.counts.size()),
                          .output = call.output,
                          .rows = plan.own_count(),
                          .hidden = plan.hidden,
                          .type = plan.dtype},
                         call.threads);
}

}  // namespace

const Operation kReduceScatter{Plan::Kind::kReduceScatter, false, stage_peers_rows, pull};
const Operation kRoutedReduceScatter{Plan::Kind::kReduceScatter, true, stage_routed_rows,
                                     pull_routed};

bool Engine::reduce_scatter(const Plan& plan, Buffer& buffer, size_t offset, void* output,
                            int threads, const Routing* routing,
                            const kernels::Epilogue* epilogue) {
  const bool routed = routing != nullptr;
  return from_pool({routed ? kRoutedReduceScatter : kReduceScatter, plan, routing, output, threads,
                    routed ? counts_.routed : counts_.pull, epilogue},
                   buffer, offset);
}

bool Engine::reduce_scatter_staged(const Plan& plan, const void* input, void* output, int threads,
                                   const Routing* routing, const kernels::Epilogue* epilogue) {
  const bool routed = routing != nullptr;
  return from_memory({routed ? kRoutedReduceScatter : kReduceScatter, plan, routing, output,
                      threads, routed ? counts_.routed_staged : counts_.staged, epilogue},
                     input);
}

}  // namespace symmoe
