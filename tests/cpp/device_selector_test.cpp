// The choice of a path: a pure function of facts that are equal on all ranks.
#include "collectives/device/selector.h"

#include <string>
#include <vector>

#include "check.h"
#include "collectives/device/cost_model.h"
#include "collectives/device/tuning.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

// Only looked at, never called.
Communicator* const kSome = reinterpret_cast<Communicator*>(uintptr_t{64});
Communicator* const kOther = reinterpret_cast<Communicator*>(uintptr_t{128});

Plan plan_of(Plan::Kind kind, const std::vector<int64_t>& counts, int64_t stride = 0) {
  Plan plan;
  plan.kind = kind;
  plan.hidden = 1024;
  plan.counts = counts;
  for (const int64_t count : counts) {
    plan.begins.push_back(stride == 0 ? plan.rows : stride * int64_t(plan.begins.size()));
    plan.rows += stride == 0 ? count : stride;
  }
  plan.text = "test";
  plan.seal();
  return plan;
}

const Plan kEven = plan_of(Plan::Kind::kReduceScatter, {4, 4});
const Plan kUneven = plan_of(Plan::Kind::kReduceScatter, {4, 3});
const Plan kPadded = plan_of(Plan::Kind::kReduceScatter, {4, 4}, 6);
const Plan kGather = plan_of(Plan::Kind::kAllGather, {4, 4});
const Plan kUnevenGather = plan_of(Plan::Kind::kAllGather, {4, 3});
const Plan kAlone = plan_of(Plan::Kind::kReduceScatter, {4});
const Plan kNothing = plan_of(Plan::Kind::kReduceScatter, {0, 0});

Resources everything() {
  return {.communicator = kSome, .plain = kOther, .no_communicator = "", .no_windows = ""};
}

std::string chosen(const Plan& plan, bool deterministic, const Resources& resources,
                   const Tuning& tuning = {}) {
  const Selector selector(LinkRates{}, tuning);
  const DevicePath* path = selector.choose(problem_of(plan, deterministic), resources);
  return path == nullptr ? "none" : path->name();
}

}  // namespace

TEST(rows_with_gaps_are_uneven) {
  CHECK(problem_of(kEven, false).even);
  CHECK(!problem_of(kUneven, false).even);
  CHECK(!problem_of(kPadded, false).even);  // NCCL's rows have no gaps
  CHECK(problem_of(plan_of(Plan::Kind::kReduceScatter, {6, 6}, 6), false).even);
  CHECK_EQ(problem_of(kUneven, false).bytes, size_t{4 * 1024 * 2});
  CHECK_EQ(problem_of(kPadded, false).total_bytes, size_t{12 * 1024 * 2});
}

TEST(each_call_has_its_path) {
  const Resources all = everything();
  CHECK_EQ(chosen(kEven, false, all), "direct");
  CHECK_EQ(chosen(kEven, true, all), "ordered");
  CHECK_EQ(chosen(kUneven, false, all), "grouped");
  CHECK_EQ(chosen(kUneven, true, all), "ordered");
  CHECK_EQ(chosen(kPadded, false, all), "grouped");
  CHECK_EQ(chosen(kGather, false, all), "plain");
  CHECK_EQ(chosen(kUnevenGather, false, all), "grouped");
  CHECK_EQ(chosen(kAlone, false, all), "local");
  CHECK_EQ(chosen(kAlone, true, all), "local");
  CHECK_EQ(chosen(kNothing, true, all), "local");

  Resources no_windows = all;
  no_windows.no_windows = "too old";
  no_windows.plain = nullptr;
  CHECK_EQ(chosen(kEven, false, no_windows), "plain");
  CHECK_EQ(chosen(kEven, true, no_windows), "ordered");

  const Resources nothing{nullptr, nullptr, "no NCCL", "no NCCL"};
  for (const Plan* plan : {&kEven, &kUneven, &kPadded, &kGather, &kUnevenGather}) {
    for (const bool deterministic : {false, true}) {
      if (plan->kind == Plan::Kind::kAllGather && deterministic) continue;
      CHECK_EQ(chosen(*plan, deterministic, nothing), "none");
    }
  }
  CHECK_EQ(chosen(kNothing, false, nothing), "local");
}

// From a window, ordinary kernels need a communicator that does not know it.
TEST(plain_needs_a_second_communicator) {
  Resources resources = everything();
  resources.plain = nullptr;
  const Selector selector(LinkRates{}, {});
  for (const Candidate& each : selector.rank(problem_of(kEven, false), resources)) {
    if (each.path->kind() != PathKind::kPlain) continue;
    CHECK(each.refusal.find("second communicator") != std::string::npos);
  }
  CHECK_EQ(chosen(kGather, false, resources), "plain");  // gathered rows are in no window
}

// A world of one has no communicator, and windows that no reason speaks against. A table that says
// otherwise must not send a call to NCCL.
TEST(nothing_beats_no_work) {
  const Tuning tuning({{PathKind::kDirect, DType::kBFloat16, 1, 0.001},
                       {PathKind::kPlain, DType::kBFloat16, 1, 0.001}});
  Resources alone;
  alone.no_communicator = "a world of one needs none";
  CHECK_EQ(chosen(kAlone, false, alone, tuning), "local");
  CHECK_EQ(chosen(kNothing, false, everything(), tuning), "local");
}

TEST(measured_times_decide) {
  const auto times = [](double direct, double plain) {
    return Tuning({{PathKind::kPlain, DType::kBFloat16, 4096, plain},
                   {PathKind::kPlain, DType::kBFloat16, 65536, plain},
                   {PathKind::kDirect, DType::kBFloat16, 4096, direct},
                   {PathKind::kDirect, DType::kBFloat16, 65536, direct}});
  };
  CHECK_EQ(chosen(kEven, false, everything(), times(10, 20)), "direct");
  CHECK_EQ(chosen(kEven, false, everything(), times(20, 10)), "plain");
  CHECK(times(20, 10).wants(PathKind::kPlain));
  CHECK(!times(10, 20).wants(PathKind::kPlain));
  CHECK(!Tuning().wants(PathKind::kPlain));
  // Predictions do not compete with measurements: they are of another machine.
  const Tuning slow_direct({{PathKind::kDirect, DType::kBFloat16, 4096, 1e6}});
  CHECK_EQ(chosen(kEven, false, everything(), slow_direct), "direct");
}

TEST(between_measured_sizes) {
  const Tuning tuning({{PathKind::kDirect, DType::kBFloat16, 3000, 30.0},
                       {PathKind::kDirect, DType::kBFloat16, 1000, 10.0},
                       {PathKind::kDirect, DType::kFloat32, 1000, 99.0}});
  const auto us = [&](size_t bytes) {
    return *tuning.us(PathKind::kDirect, DType::kBFloat16, bytes);
  };
  CHECK_EQ(us(1), 10.0);
  CHECK_EQ(us(1000), 10.0);
  CHECK_EQ(us(2000), 20.0);
  CHECK_EQ(us(3000), 30.0);
  CHECK_EQ(us(6000), 60.0);
  CHECK(!tuning.us(PathKind::kPlain, DType::kBFloat16, 1000));
  CHECK(!tuning.us(PathKind::kDirect, DType::kFloat16, 1000));
}

TEST(predictions_are_plausible) {
  const LinkRates hopper = rates_of(9);
  const LinkRates blackwell = rates_of(10);
  CHECK(blackwell.link_bytes_per_us > hopper.link_bytes_per_us);
  for (int64_t rows = 1; rows < 5000; rows *= 3) {
    const Problem problem =
        problem_of(plan_of(Plan::Kind::kReduceScatter, {rows, rows, rows, rows}), false);
    const double direct = predicted_us(PathKind::kDirect, problem, hopper);
    CHECK(direct < predicted_us(PathKind::kPlain, problem, hopper));
    CHECK(direct < predicted_us(PathKind::kOrdered, problem, hopper));
    CHECK(predicted_us(PathKind::kDirect, problem, blackwell) < direct);
    const Problem larger = problem_of(
        plan_of(Plan::Kind::kReduceScatter, {rows + 1, rows + 1, rows + 1, rows + 1}), false);
    CHECK(predicted_us(PathKind::kDirect, larger, hopper) > direct);
  }
}

TEST(candidates_come_best_first) {
  const Selector selector(LinkRates{}, {});
  const auto candidates = selector.rank(problem_of(kEven, false), everything());
  CHECK_EQ(candidates.size(), size_t{kPathKinds});
  bool refused = false;
  for (size_t each = 0; each < candidates.size(); ++each) {
    CHECK(!refused || !candidates[each].refusal.empty());
    refused = !candidates[each].refusal.empty();
    if (each > 0 && !refused) CHECK(candidates[each].us >= candidates[each - 1].us);
    CHECK_EQ(candidates[each].us > 0, !refused);
  }
}

int main(int argc, char** argv) { return run_all(argc, argv); }
