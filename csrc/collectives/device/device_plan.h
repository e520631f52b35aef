#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "collectives/device/path.h"
#include "collectives/device/problem.h"
#include "collectives/plan.h"

namespace symmoe {

// A plan with the path that its group chose for it, so that a call does not choose again.
struct DevicePlan {
  explicit DevicePlan(Plan sealed)
      : plan(std::move(sealed)), problems{problem_of(plan, false), problem_of(plan, true)} {}

  struct Choice {
    std::atomic<const DevicePath*> path = nullptr;
    std::atomic<uint32_t> version = 0;  // of the group's resources at that time; 0: none yet
  };

  Plan plan;
  std::array<Problem, 2> problems;        // by deterministic
  mutable std::array<Choice, 2> choices;  // likewise
};

}  // namespace symmoe
