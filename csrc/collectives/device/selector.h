#pragma once

#include <string>
#include <utility>
#include <vector>

#include "collectives/device/cost_model.h"
#include "collectives/device/path.h"
#include "collectives/device/tuning.h"

namespace symmoe {

// One path, looked at for one problem.
struct Candidate {
  const DevicePath* path = nullptr;
  std::string refusal;    // why it cannot; empty if it can
  double us = 0.0;        // expected time; 0 if it cannot
  bool measured = false;  // by the tuning table, else predicted
};

// Chooses the path with the least expected time among those that can. Pure: the same arguments give
// the same path, and all of them are equal on all ranks.
class Selector {
 public:
  Selector(LinkRates rates, Tuning tuning);

  // The chosen one first, then the others that could, then those that cannot.
  std::vector<Candidate> rank(const Problem& problem, const Resources& resources) const;

  // Just the first. There is always one while there is a communicator.
  const DevicePath* choose(const Problem& problem, const Resources& resources) const;

 private:
  static std::string refusal(const DevicePath& path, const Problem& problem,
                             const Resources& resources);
  std::pair<double, bool> expected(PathKind kind, const Problem& problem) const;

  LinkRates rates_;
  Tuning tuning_;
};

}  // namespace symmoe
