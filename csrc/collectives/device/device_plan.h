#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "collectives/device/path.h"
#include "collectives/device/problem.h"
#include "collectives/plan.h"

namespace symmoe {

// A plan with the paths that its group chose for it, so that a call does not choose again.
struct DevicePlan {
  explicit DevicePlan(Plan sealed) : plan(std::move(sealed)) {}

  struct Choice {
    std::atomic<const DevicePath*> path = nullptr;
    // The group's resources at that time, above the call's slots; 0: none yet.
    std::atomic<uint64_t> stamp = 0;
  };

  Plan plan;
  mutable std::array<Choice, kForms> choices;  // by index_of(form)
};

}  // namespace symmoe
