#include "collectives/plan.h"

#include <numeric>

#include "base/error.h"

namespace symmoe {

uint64_t signature_of(std::string_view text) {
  constexpr uint64_t kOffsetBasis = 0xcbf29ce484222325;
  constexpr uint64_t kPrime = 0x100000001b3;
  uint64_t hash = kOffsetBasis;
  for (const char character : text) {
    hash = (hash ^ static_cast<unsigned char>(character)) * kPrime;
  }
  return hash == 0 ? kOffsetBasis : hash;
}

bool Plan::has_padding() const {
  return device_sizes || std::accumulate(counts.begin(), counts.end(), int64_t{0}) != rows;
}

void Plan::seal() {
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) {
      throw InvalidArgument(std::string(operation()) + ", rank " + std::to_string(rank) + ": " +
                            what + " (" + text + ")");
    }
  };
  require(hidden >= 0 && rows >= 0, "negative size");
  require(lane >= 0 && lane < kMaxLanes,
          "lane " + std::to_string(lane) + " is not in 0.." + std::to_string(kMaxLanes - 1));
  require(begins.size() == counts.size() && !counts.empty(), "one begin and count per rank");
  require(rank >= 0 && rank < static_cast<int>(counts.size()), "rank outside the group");
  for (size_t r = 0; r < counts.size(); ++r) {
    require(counts[r] >= 0 && begins[r] >= 0 && begins[r] <= rows && counts[r] <= rows - begins[r],
            "rows of rank " + std::to_string(r) + " (" + std::to_string(counts[r]) + " from " +
                std::to_string(begins[r]) + ") lie outside " + std::to_string(rows));
    require(r == 0 || begins[r - 1] <= begins[r],
            "rows of rank " + std::to_string(r) + " lie before those of the rank in front");
  }
  signature = signature_of(text);
}

}  // namespace symmoe
