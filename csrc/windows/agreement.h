#pragma once

#include <string>
#include <vector>

namespace symmoe {

// How ranks settle things that happen rarely (growth, memory given back) without touching a device.
class Agreement {
 public:
  virtual ~Agreement() = default;

  // Every rank's text, in rank order. Collective: all ranks make the same calls in the same order.
  // Throws PeerLost or DeadlineExceeded.
  virtual std::vector<std::string> gather(const std::string& topic, const std::string& text) = 0;
};

// What ranks answer to a request that all of them make together.
struct Answers {
  std::string failures;              // "rank 1: ...; rank 3: ...", empty if no rank has one
  std::vector<std::string> details;  // by rank, what each added
};

// Collective. Throws Mismatch, on every rank alike, if requests differ. `failure` is empty unless
// this rank cannot do its part; `detail` must have no line break.
Answers agree(Agreement& agreement, int rank, const std::string& request,
              const std::string& failure, const std::string& detail = "");

}  // namespace symmoe
