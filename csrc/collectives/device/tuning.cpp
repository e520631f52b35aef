#include "collectives/device/tuning.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace symmoe {

Tuning::Tuning(std::vector<TunedTime> times) : times_(std::move(times)) {
  std::sort(times_.begin(), times_.end(), [](const TunedTime& a, const TunedTime& b) {
    return std::tie(a.path, a.dtype, a.bytes) < std::tie(b.path, b.dtype, b.bytes);
  });
}

std::optional<double> Tuning::us(PathKind path, DType dtype, size_t bytes) const {
  const TunedTime* below = nullptr;
  const TunedTime* above = nullptr;
  for (const TunedTime& time : times_) {
    if (time.path != path || time.dtype != dtype) continue;
    if (time.bytes <= bytes) below = &time;
    if (time.bytes >= bytes && above == nullptr) above = &time;
  }
  if (below == nullptr && above == nullptr) return std::nullopt;
  if (below == nullptr) return above->us;
  const auto size = static_cast<double>(bytes);
  const auto from = static_cast<double>(below->bytes);
  if (above == nullptr) return below->us * size / from;
  if (above == below || above->bytes == below->bytes) return below->us;
  const double part = (size - from) / (static_cast<double>(above->bytes) - from);
  return below->us + part * (above->us - below->us);
}

bool Tuning::wants(PathKind path) const {
  return std::any_of(times_.begin(), times_.end(), [&](const TunedTime& time) {
    if (time.path != path) return false;
    return std::all_of(times_.begin(), times_.end(), [&](const TunedTime& other) {
      const auto theirs = us(other.path, time.dtype, time.bytes);
      return !theirs || time.us <= *theirs;
    });
  });
}

}  // namespace symmoe
