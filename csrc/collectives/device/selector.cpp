#include "collectives/device/selector.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "collectives/device/paths/paths.h"

namespace symmoe {
namespace {

constexpr double kLeastUs = 0.001;

// Where two are equally good the first is taken.
const std::array<const DevicePath*, kPathKinds>& all_paths() {
  static const LocalPath local;
  static const DirectPath direct;
  static const PlainPath plain;
  static const GroupedPath grouped;
  static const OrderedPath ordered;
  static const PullPath pull;
  static const RoutedPath routed;
  static const FusedPath fused;
  static const std::array<const DevicePath*, kPathKinds> all = {
      &local, &direct, &plain, &grouped, &ordered, &pull, &routed, &fused};
  return all;
}

}  // namespace

const DevicePath& path_of(PathKind kind) { return *all_paths().at(static_cast<size_t>(kind)); }

Selector::Selector(LinkRates rates, Tuning tuning) : rates_(rates), tuning_(std::move(tuning)) {}

// A path's own refusal, or that the settings leave it out.
std::string Selector::refusal(const DevicePath& path, const Problem& problem,
                              const Resources& resources) {
  std::string reason = path.refusal(problem, resources);
  // Where nothing has to move there is nothing to choose.
  const bool may_be_left_out = path.kind() != PathKind::kLocal;
  if (reason.empty() && may_be_left_out && (resources.paths & bit_of(path.kind())) == 0) {
    reason = "it is left out by the settings (Config.paths, SYMMOE_PATHS)";
  }
  return reason;
}

// Measured and predicted times do not compare: the model's constants are of other machines. But
// what a path differs in from one that was measured may be predicted.
std::pair<double, bool> Selector::expected(PathKind kind, const Problem& problem) const {
  const double predicted = predicted_us(kind, problem, rates_);
  if (!problem.even || problem.kind != Plan::Kind::kReduceScatter) return {predicted, false};
  const bool of_pull = kind == PathKind::kRouted || kind == PathKind::kFused;
  const PathKind known = of_pull ? PathKind::kPull : kind;
  const auto measured = tuning_.us(known, problem.dtype, problem.bytes);
  if (!measured) return {predicted, false};
  Problem alone = problem;  // what was measured: the collective by itself
  alone.form.from_sum = alone.form.routed = false;
  return {std::max(kLeastUs, *measured + predicted - predicted_us(known, alone, rates_)), true};
}

std::vector<Candidate> Selector::rank(const Problem& problem, const Resources& resources) const {
  std::vector<Candidate> candidates;
  for (const DevicePath* const path : all_paths()) {
    Candidate candidate{.path = path, .refusal = refusal(*path, problem, resources)};
    if (candidate.refusal.empty()) {
      std::tie(candidate.us, candidate.measured) = expected(path->kind(), problem);
    }
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
