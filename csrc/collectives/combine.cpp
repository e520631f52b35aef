// The top-k sum into the window and the reduce-scatter out of all windows, as one call: what
// acquire, topk_reduce and reduce_scatter do one after the other, for a window that is there. The
// peers' rows come first, so that peers can go on while this rank sums its own, which only it will
// read. Padding is never summed.
#include <algorithm>
#include <string>
#include <vector>

#include "collectives/engine.h"
#include "collectives/operation.h"

namespace symmoe {
namespace {

// Sums the rows of the peers, adjacent ranks' together.
void sum_for_peers(const Plan& plan, const kernels::TopkReduceArgs& sum, int threads) {
  int64_t begin = 0;
  int64_t end = 0;
  for (size_t rank = 0; rank < plan.counts.size(); ++rank) {
    if (static_cast<int>(rank) == plan.rank) continue;
    if (plan.begins[rank] != end) {
      kernels::topk_reduce_rows(sum, begin, end, threads);
      begin = plan.begins[rank];
    }
    end = plan.begins[rank] + plan.counts[rank];
  }
  kernels::topk_reduce_rows(sum, begin, end, threads);
}

}  // namespace

Combined Engine::combine(const Plan& plan, kernels::TopkReduceArgs sum, const CombineInputs& inputs,
                         void* output, int threads, const Routing* routing,
                         const kernels::Epilogue* epilogue) {
  const bool routed = routing != nullptr;
  const Call call{routed ? kRoutedReduceScatter : kReduceScatter, plan,    routing, output, threads,
                  routed ? counts_.routed : counts_.pull,         epilogue};
  require_usable("acquire");
  require_fit(call);
  if (sum.tokens != plan.rows || sum.hidden != plan.hidden || sum.output_type != plan.dtype) {
    throw InvalidArgument(at("combine") + ": the sum is [" + std::to_string(sum.tokens) + ", " +
                          std::to_string(sum.hidden) + "] " + name_of(sum.output_type) +
                          ", which is not what the plan reduces (" + plan.text + ")");
  }
  std::vector<int64_t> index;
  if (routed) sum = routing->sum_on(rank_, sum, &index);
  Endpoint& here = endpoint(plan.role, plan.lane, plan.operation());
  Exchange exchange(here, plan.operation());
  const std::shared_ptr<Buffer> buffer = pool_.current({plan.role, plan.lane, Use::kAcquired});
  if (buffer == nullptr || buffer->window.bytes < plan.input_bytes()) return Combined::kUnready;
  const MemoryRange window{buffer->window.base, plan.input_bytes()};
  const MemoryRange target{static_cast<const std::byte*>(output), call.output_bytes()};
  if (std::any_of(inputs.begin(), inputs.end(), [&](const MemoryRange& input) {
        return !is_apart(input, window) || !is_apart(input, target);
      })) {
    return Combined::kUnready;
  }
  if (target.bytes != 0 &&
      (output == nullptr || !why_no_output(output, target.bytes, plan.lane).empty())) {
    return Combined::kUnready;
  }
  require_places(call);
  sum.output = buffer->window.base;
  kernels::check_topk_reduce(sum);
  return guarded([&] {
    arm(*buffer, here);
    exchange.open();
    const Posting posting = posting_from(call, *buffer, 0);
    buffer->armed.store(false, std::memory_order_relaxed);
    buffer->last_epoch = exchange.next_epoch();
    sum.output_is_shared = true;
    sum_for_peers(plan, sum, threads);
    exchange.publish(posting);
    sum.output_is_shared = false;
    kernels::topk_reduce_rows(sum, plan.own_begin(), plan.own_begin() + plan.own_count(), threads);
    return collect(call, exchange, buffer->window.base) ? Combined::kDone : Combined::kNoWindow;
  });
}

}  // namespace symmoe
