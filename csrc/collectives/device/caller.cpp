#include "collectives/device/caller.h"

#include <cstdint>

#include "base/dtype.h"

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

}  // namespace symmoe
