// The top-k sum into the window and the reduce-scatter out of all windows, as one call: what
// acquire, topk_reduce and reduce_scatter do one after the other, for a window that is there.
#include <algorithm>
#include <string>

#include "collectives/engine.h"
#include "collectives/operation.h"

namespace symmoe {
namespace {

bool overlap(MemoryRange a, MemoryRange b) {
  return a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

}  // namespace

Combined Engine::combine(const Plan& plan, kernels::TopkReduceArgs sum, const CombineInputs& inputs,
                         void* output, int threads) {
  require_usable("acquire");
  require_fit(kReduceScatter, plan);
  if (sum.tokens != plan.rows || sum.hidden != plan.hidden || sum.output_type != plan.dtype) {
    throw InvalidArgument(at("combine") + ": the sum is [" + std::to_string(sum.tokens) + ", " +
                          std::to_string(sum.hidden) + "] " + name_of(sum.output_type) +
                          ", which is not what the plan reduces (" + plan.text + ")");
  }
  Endpoint& here = endpoint(plan.role, plan.lane, plan.operation());
  Exchange exchange(here, plan.operation());
  const std::shared_ptr<Buffer> buffer = pool_.current({plan.role, plan.lane, Use::kAcquired});
  if (buffer == nullptr || buffer->window.bytes < plan.input_bytes()) return Combined::kUnready;
  const MemoryRange window{buffer->window.base, plan.input_bytes()};
  const MemoryRange target{static_cast<const std::byte*>(output), plan.output_bytes()};
  if (std::any_of(inputs.begin(), inputs.end(), [&](const MemoryRange& input) {
        return overlap(input, window) || overlap(input, target);
      })) {
    return Combined::kUnready;
  }
  if (target.bytes != 0 && (output == nullptr || pool_.overlaps(target.begin, target.bytes))) {
    return Combined::kUnready;
  }
  guarded([&] { arm(*buffer, here); });
  sum.output = buffer->window.base;
  sum.output_is_shared = world() > 1;
  kernels::topk_reduce(sum, threads);
  return from_taken(kReduceScatter, exchange, plan, *buffer, 0, output, threads, counts_.pull)
             ? Combined::kDone
             : Combined::kNoWindow;
}

}  // namespace symmoe
