#include "collectives/device/selector.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "collectives/device/paths/paths.h"

namespace symmoe {
namespace {

// Where two are equally good the first is taken.
const std::array<const DevicePath*, kPathKinds>& all_paths() {
  static const LocalPath local;
  static const DirectPath direct;
  static const PlainPath plain;
  static const GroupedPath grouped;
  static const OrderedPath ordered;
  static const std::array<const DevicePath*, kPathKinds> all = {&local, &direct, &plain, &grouped,
                                                                &ordered};
  return all;
}

}  // namespace

const DevicePath& path_of(PathKind kind) { return *all_paths().at(static_cast<size_t>(kind)); }

Selector::Selector(LinkRates rates, Tuning tuning) : rates_(rates), tuning_(std::move(tuning)) {}

std::vector<Candidate> Selector::rank(const Problem& problem, const Resources& resources) const {
  // Measured and predicted times do not compare: the model's constants are of other machines.
  const auto expected = [&](const DevicePath& path) -> std::pair<double, bool> {
    if (problem.even && problem.kind == Plan::Kind::kReduceScatter) {
      const auto measured = tuning_.us(path.kind(), problem.dtype, problem.bytes);
      if (measured) return {*measured, true};
    }
    return {predicted_us(path.kind(), problem, rates_), false};
  };
  std::vector<Candidate> candidates;
  for (const DevicePath* const path : all_paths()) {
    Candidate candidate{.path = path, .refusal = path->refusal(problem, resources)};
    if (candidate.refusal.empty()) std::tie(candidate.us, candidate.measured) = expected(*path);
    candidates.push_back(std::move(candidate));
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    if (a.refusal.empty() != b.refusal.empty()) return a.refusal.empty();
    // Where nothing has to move, no measurement of what moves rows counts.
    const bool a_local = a.refusal.empty() && a.path->kind() == PathKind::kLocal;
    const bool b_local = b.refusal.empty() && b.path->kind() == PathKind::kLocal;
    if (a_local != b_local) return a_local;
    if (a.measured != b.measured) return a.measured;
    return a.us < b.us;
  });
  return candidates;
}

const DevicePath* Selector::choose(const Problem& problem, const Resources& resources) const {
  const Candidate best = rank(problem, resources).front();
  return best.refusal.empty() ? best.path : nullptr;
}

}  // namespace symmoe
