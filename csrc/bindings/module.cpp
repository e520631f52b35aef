#include <pybind11/pybind11.h>

#include "bindings/bindings.h"
#include "collectives/engine.h"
#include "windows/host_identity.h"

namespace symmoe {

PYBIND11_MODULE(_core, module) {
  module.doc() = "Compiled core of symmoe: windows, pool, collectives and kernels.";
  module.attr("VERSION") = SYMMOE_VERSION;
  module.attr("COMPILER") = __VERSION__;
  module.attr("MAX_LANES") = kMaxLanes;
  module.attr("MAX_RANKS") = kMaxRanks;
  module.attr("BFLOAT16") = static_cast<int>(DType::kBFloat16);
  module.attr("FLOAT16") = static_cast<int>(DType::kFloat16);
  module.attr("FLOAT32") = static_cast<int>(DType::kFloat32);
  module.attr("COMBINE") = static_cast<int>(Role::kCombine);
  module.attr("DISPATCH") = static_cast<int>(Role::kDispatch);
  module.attr("REDUCE_SCATTER") = static_cast<int>(Plan::Kind::kReduceScatter);
  module.attr("ALL_GATHER") = static_cast<int>(Plan::Kind::kAllGather);
  module.attr("INT8") = static_cast<int>(kernels::Quantized::kInt8);
  module.attr("FLOAT8_E4M3") = static_cast<int>(kernels::Quantized::kFloat8);
  module.def("host_identity", &host_identity);

  bindings::bind_errors(module);
  bindings::bind_kernels(module);
  bindings::bind_epilogue(module);
  bindings::bind_group(module);
  bindings::bind_device(module);
  bindings::bind_device_group(module);
  bindings::bind_known_calls(module);
  bindings::bind_measure(module);
}

}  // namespace symmoe
