#include "fake_nccl/arithmetic.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "fake_nccl/elements.h"

namespace symmoe::fake {
namespace {

template <typename Sum>
Sum apply(NcclRedOp op, Sum left, Sum right) {
  switch (op) {
    case kNcclMax:
      return std::max(left, right);
    case kNcclMin:
      return std::min(left, right);
    default:
      // Integers wrap round, also where C++ would not let them.
      if constexpr (std::is_integral_v<Sum>) {
        using Unsigned = std::make_unsigned_t<Sum>;
        return static_cast<Sum>(static_cast<Unsigned>(left) + static_cast<Unsigned>(right));
      } else {
        return left + right;
      }
  }
}

template <typename Element>
void combine_elements(NcclRedOp op, Rounding rounding, std::span<const std::byte* const> sources,
                      std::byte* output, size_t count) {
  using Sum = typename Element::Sum;
  for (size_t i = 0; i < count; ++i) {
    Sum sum = load<Element>(sources[0], i);
    for (const std::byte* source : sources.subspan(1)) {
      sum = apply(op, sum, load<Element>(source, i));
      if (rounding == Rounding::kEveryHop) sum = Element::widen(Element::narrow(sum));
    }
    if (op == kNcclAvg) sum = static_cast<Sum>(sum / static_cast<Sum>(sources.size()));
    store<Element>(output, i, sum);
  }
}

}  // namespace

size_t size_of(NcclDataType type) {
  switch (type) {
    case kNcclInt8:
    case kNcclUint8:
      return 1;
    case kNcclFloat16:
    case kNcclBfloat16:
      return 2;
    case kNcclInt32:
    case kNcclUint32:
    case kNcclFloat32:
      return 4;
    case kNcclInt64:
    case kNcclUint64:
    case kNcclFloat64:
      return 8;
  }
  return 0;
}

bool supported(NcclRedOp op) {
  return op == kNcclSum || op == kNcclMax || op == kNcclMin || op == kNcclAvg;
}

void combine(NcclDataType type, NcclRedOp op, Rounding rounding,
             std::span<const std::byte* const> sources, std::byte* output, size_t count) {
  switch (type) {
    case kNcclInt8:
      return combine_elements<Plain<int8_t>>(op, rounding, sources, output, count);
    case kNcclUint8:
      return combine_elements<Plain<uint8_t>>(op, rounding, sources, output, count);
    case kNcclInt32:
      return combine_elements<Plain<int32_t>>(op, rounding, sources, output, count);
    case kNcclUint32:
      return combine_elements<Plain<uint32_t>>(op, rounding, sources, output, count);
    case kNcclInt64:
      return combine_elements<Plain<int64_t>>(op, rounding, sources, output, count);
    case kNcclUint64:
      return combine_elements<Plain<uint64_t>>(op, rounding, sources, output, count);
    case kNcclFloat16:
      return combine_elements<Float16>(op, rounding, sources, output, count);
    case kNcclFloat32:
      return combine_elements<Plain<float>>(op, rounding, sources, output, count);
    case kNcclFloat64:
      return combine_elements<Plain<double>>(op, rounding, sources, output, count);
    case kNcclBfloat16:
      return combine_elements<Bfloat16>(op, rounding, sources, output, count);
  }
}

}  // namespace symmoe::fake
