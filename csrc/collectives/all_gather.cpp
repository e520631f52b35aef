// Every rank's rows -> all rows on every rank, by plain copies out of the windows.
#include "collectives/engine.h"
#include "kernels/cpu/kernels.h"

namespace symmoe {

bool Engine::all_gather(const Plan& plan, Buffer& buffer, size_t offset, void* output,
                        int threads) {
  require_usable("all_gather");
  Exchange exchange(endpoint(plan.role, plan.lane), "all_gather");
  const Posting posting = posting_from(plan, buffer, offset);
  require_output_outside(plan, output);
  return guarded([&] {
    exchange.open();
    buffer.armed = false;
    buffer.last_epoch = exchange.next_epoch();
    const std::byte* own_rows = buffer.window.base + offset;
    const bool done = gather(exchange, plan, posting, own_rows, output, threads);
    if (done) counts_.gather.fetch_add(1, std::memory_order_relaxed);
    return done;
  });
}

bool Engine::all_gather_staged(const Plan& plan, const void* input, void* output, int threads) {
  require_usable("all_gather");
  Exchange exchange(endpoint(plan.role, plan.lane), "all_gather");
  require_output_outside(plan, output);
  return guarded([&] {
    exchange.open();
    Posting posting{Posting::kNothing, 0, plan.signature, plan.text};
    if (world() > 1 && plan.own_count() > 0) {
      const auto stage = stage_for(plan, plan.input_bytes());
      posting.ordinal = stage == nullptr ? Posting::kNoWindow : stage->window.ordinal;
      if (stage != nullptr) {
        stage->last_epoch = exchange.next_epoch();
        kernels::copy(stage->window.base, input, plan.input_bytes(), threads);
      }
    }
    const bool done = gather(exchange, plan, posting, input, output, threads);
    if (done) counts_.gather_staged.fetch_add(1, std::memory_order_relaxed);
    return done;
  });
}

bool Engine::gather(Exchange& exchange, const Plan& plan, const Posting& posting,
                    const void* own_rows, void* output, int threads) {
  const bool all_have_windows = exchange.meet(posting);
  if (all_have_windows) {
    // Beginning with the own rows and going round, so that ranks do not all read the same peer.
    for (int i = 0; i < world(); ++i) {
      const int rank = (rank_ + i) % world();
      const size_t bytes = plan.bytes_of(plan.counts[static_cast<size_t>(rank)]);
      if (bytes == 0) continue;
      std::byte* target =
          static_cast<std::byte*>(output) + plan.bytes_of(plan.begins[static_cast<size_t>(rank)]);
      const void* rows = rank == rank_ ? own_rows : exchange.rows_of(rank, *source_);
      if (target != rows) kernels::copy(target, rows, bytes, threads);
    }
  }
  exchange.finish();
  return all_have_windows;
}

}  // namespace symmoe
