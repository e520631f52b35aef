// Every rank's rows -> all rows on every rank, by plain copies out of the windows.
#include "collectives/engine.h"
#include "collectives/operation.h"
#include "kernels/cpu/kernels.h"

namespace symmoe {
namespace {

void stage_own_rows(const Plan& plan, const Routing* /*none*/, const std::byte* input,
                    std::byte* stage, int threads) {
  kernels::copy(stage, input, plan.input_bytes(), threads);
}

void gather(Exchange& exchange, WindowSource& source, const Call& call, const std::byte* own_rows) {
  const Plan& plan = call.plan;
  auto* const output = static_cast<std::byte*>(call.output);
  // Beginning with the own rows and going round, so that ranks do not all read the same peer.
  const int world = static_cast<int>(plan.counts.size());
  for (int i = 0; i < world; ++i) {
    const int rank = (plan.rank + i) % world;
    const size_t bytes = plan.bytes_of(plan.counts[static_cast<size_t>(rank)]);
    if (bytes == 0) continue;
    std::byte* target = output + plan.bytes_of(plan.begins[static_cast<size_t>(rank)]);
    const std::byte* rows = rank == plan.rank ? own_rows : exchange.rows_of(rank, source);
    if (target != rows) kernels::copy(target, rows, bytes, call.threads);
  }
}

}  // namespace

const Operation kAllGather{Plan::Kind::kAllGather, false, stage_own_rows, gather};

bool Engine::all_gather(const Plan& plan, Buffer& buffer, size_t offset, void* output,
                        int threads) {
  return from_pool({kAllGather, plan, nullptr, output, threads, counts_.gather}, buffer, offset);
}

bool Engine::all_gather_staged(const Plan& plan, const void* input, void* output, int threads) {
  return from_memory({kAllGather, plan, nullptr, output, threads, counts_.gather_staged}, input);
}

}  // namespace symmoe
