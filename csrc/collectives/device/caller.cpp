#include "collectives/device/caller.h"

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu/epilogue.h"

namespace symmoe {

void require_aligned(const Caller& caller, const char* name, const void* address, size_t element) {
  const auto number = reinterpret_cast<uintptr_t>(address);
  if (number % element == 0) return;
  throw InvalidArgument(caller.text() + ": the address of " + name + " is " +
                        std::to_string(number % element) + " bytes beyond a multiple of " +
                        std::to_string(element) + ", the size of its elements");
}

void require_aligned(const Caller& caller, const kernels::TopkReduceLaunch& launch) {
  require_aligned(caller, "expert_out", launch.input, size_of(launch.input_type));
  require_aligned(caller, "topk_weights", launch.weights, size_of(launch.weights_type));
  require_aligned(caller, "index", launch.index,
                  launch.index_is_64bit ? sizeof(int64_t) : sizeof(int32_t));
  require_aligned(caller, "out", launch.output, size_of(launch.output_type));
}

void require_memory(const Caller& caller, const kernels::TopkReduceLaunch& launch) {
  if (launch.tokens == 0 || launch.hidden == 0) return;
  const bool reads = launch.slots > 0 && (launch.index == nullptr || launch.pairs > 0);
  if (reads && launch.input == nullptr) {
    throw InvalidArgument(caller.text() + ": expert_out has no memory");
  }
  if (launch.output == nullptr) throw InvalidArgument(caller.text() + ": out has no memory");
}

void require_apart(const Caller& caller, const kernels::TopkReduceLaunch& launch, size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(launch.output);
  const auto check = [&](const char* name, const void* address, int64_t count, size_t element) {
    const auto* const first = static_cast<const std::byte*>(address);
    const size_t length = static_cast<size_t>(count) * element;
    if (first == nullptr || first >= begin + bytes || begin >= first + length) return;
    throw InvalidArgument(caller.text() + ": the output overlaps " + name + ": it lies in the " +
                          "window that the sum is written to");
  };
  const int64_t slots = launch.tokens * launch.slots;
  const int64_t rows = launch.index == nullptr ? slots : launch.pairs;
  check("expert_out", launch.input, rows * launch.hidden, size_of(launch.input_type));
  check("topk_weights", launch.weights, slots, size_of(launch.weights_type));
  check("index", launch.index, slots, launch.index_is_64bit ? sizeof(int64_t) : sizeof(int32_t));
}

void require_epilogue(const Caller& caller, const kernels::Epilogue& steps, DType type,
                      int64_t rows, int64_t hidden) {
  kernels::check_epilogue(steps, type, rows);
  const size_t element = size_of(type);
  require_aligned(caller, "epilogue.shared", steps.shared, element);
  require_aligned(caller, "epilogue.residual", steps.residual, element);
  require_aligned(caller, "epilogue.norm_weight", steps.norm_weight, size_of(steps.weight_type));
  require_aligned(caller, "epilogue.scales", steps.scales, sizeof(float));
  const bool whole = steps.norm_weight != nullptr || steps.quantized != kernels::Quantized::kNone;
  const auto longest = kernels::kEpilogueRowBytes / static_cast<int64_t>(element);
  if (!whole || hidden <= longest) return;
  throw Unavailable(caller.text() + ": rows of " + std::to_string(hidden) +
                    " elements are too long for an epilogue with a norm or quantising on a " +
                    "device, at most " + std::to_string(longest) + " of " + name_of(type) +
                    "; give the result of the call without one to symmoe.apply_epilogue");
}

}  // namespace symmoe
