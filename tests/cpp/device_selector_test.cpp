// The choice of a path: a pure function of facts that are equal on all ranks.
#include "collectives/device/selector.h"

#include <cmath>
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
  Resources all;
  all.communicator = kSome;
  all.plain = kOther;
  all.nccl_windows = true;
  return all;
}

// As before there were kernels of our own.
Resources only_nccl() {
  Resources some = everything();
  some.paths &= ~kOwnKernels;
  return some;
}

Resources nothing_at_all() {
  Resources none;
  none.no_communicator = none.no_windows = none.no_direct = none.no_peers = "no NCCL";
  return none;
}

constexpr CallForm kAnyOrder{};
constexpr CallForm kInOrder{.deterministic = true};

std::string chosen(const Plan& plan, const CallForm& form, const Resources& resources,
                   const Tuning& tuning = {}) {
  const Selector selector(LinkRates{}, tuning);
  const DevicePath* path = selector.choose(problem_of(plan, form), resources);
  return path == nullptr ? "none" : path->name();
}

std::string refused(PathKind kind, const Plan& plan, const CallForm& form,
                    const Resources& resources) {
  return path_of(kind).refusal(problem_of(plan, form), resources);
}

// Rows enough for bandwidth to matter.
Plan even_plan(int world, int64_t rows_each) {
  return plan_of(Plan::Kind::kReduceScatter, std::vector<int64_t>(size_t(world), rows_each));
}

Plan on_the_device(int64_t rows, int64_t padded_to) {
  Plan plan = plan_of(Plan::Kind::kReduceScatter, {0, 0});
  plan.device_sizes = true;
  plan.padded_to = padded_to;
  plan.rows = rows;
  plan.begins = {0, padded_to};
  plan.counts = {padded_to == 0 ? rows : padded_to, padded_to == 0 ? rows : padded_to};
  plan.seal();
  return plan;
}

}  // namespace

TEST(rows_with_gaps_are_uneven) {
  CHECK(problem_of(kEven, {}).even);
  CHECK(!problem_of(kUneven, {}).even);
  CHECK(!problem_of(kPadded, {}).even);  // NCCL's rows have no gaps
  CHECK(problem_of(plan_of(Plan::Kind::kReduceScatter, {6, 6}, 6), {}).even);
  CHECK_EQ(problem_of(kUneven, {}).bytes, size_t{4 * 1024 * 2});
  CHECK_EQ(problem_of(kPadded, {}).total_bytes, size_t{12 * 1024 * 2});
}

TEST(each_call_has_its_path_of_nccl) {
  const Resources all = only_nccl();
  CHECK_EQ(chosen(kEven, kAnyOrder, all), "direct");
  CHECK_EQ(chosen(kEven, kInOrder, all), "ordered");
  CHECK_EQ(chosen(kUneven, kAnyOrder, all), "grouped");
  CHECK_EQ(chosen(kUneven, kInOrder, all), "ordered");
  CHECK_EQ(chosen(kPadded, kAnyOrder, all), "grouped");
  CHECK_EQ(chosen(kGather, kAnyOrder, all), "plain");
  CHECK_EQ(chosen(kUnevenGather, kAnyOrder, all), "grouped");
  CHECK_EQ(chosen(kAlone, kAnyOrder, all), "local");
  CHECK_EQ(chosen(kAlone, kInOrder, all), "local");
  CHECK_EQ(chosen(kNothing, kInOrder, all), "local");

  Resources no_windows = everything();
  no_windows.no_windows = no_windows.no_direct = no_windows.no_peers = "too old";
  no_windows.nccl_windows = false;
  no_windows.plain = nullptr;
  CHECK_EQ(chosen(kEven, kAnyOrder, no_windows), "plain");
  CHECK_EQ(chosen(kEven, kInOrder, no_windows), "ordered");

  const Resources nothing = nothing_at_all();
  for (const Plan* plan : {&kEven, &kUneven, &kPadded, &kGather, &kUnevenGather}) {
    for (const CallForm& form : {kAnyOrder, kInOrder}) {
      if (plan->kind == Plan::Kind::kAllGather && form.deterministic) continue;
      CHECK_EQ(chosen(*plan, form, nothing), "none");
    }
  }
  CHECK_EQ(chosen(kNothing, kAnyOrder, nothing), "local");
}

// Nobody has timed them: they count as much as NCCL's, which come first where both can.
TEST(own_kernels_serve_what_nccl_cannot) {
  const Resources all = everything();
  const Plan small = even_plan(8, 16);
  const Plan large = even_plan(8, 16384);
  CHECK_EQ(chosen(small, kAnyOrder, all), "direct");
  CHECK_EQ(chosen(small, kInOrder, all), "pull");
  CHECK_EQ(chosen(large, kAnyOrder, all), "direct");
  CHECK_EQ(chosen(large, kInOrder, all), "pull");  // rows unreduced in scratch cost more
  CHECK_EQ(chosen(kUneven, kAnyOrder, all), "pull");
  CHECK_EQ(chosen(kPadded, kAnyOrder, all), "pull");
  CHECK_EQ(chosen(kGather, kAnyOrder, all), "plain");
  CHECK(refused(PathKind::kPull, kGather, {}, all).find("nothing to add") != std::string::npos);

  // Windows that NCCL knows nothing of, and no NCCL at all.
  Resources vmm = nothing_at_all();
  vmm.no_windows = vmm.no_peers = "";
  for (const Plan* plan : {&kEven, &kUneven, &kPadded, &large}) {
    CHECK_EQ(chosen(*plan, kAnyOrder, vmm), "pull");
  }
  Resources out_of_reach = all;
  out_of_reach.no_peers = "a peer is out of reach";
  CHECK_EQ(chosen(kEven, kAnyOrder, out_of_reach), "direct");
  CHECK_EQ(refused(PathKind::kPull, kEven, {}, out_of_reach), "a peer is out of reach");
}

TEST(one_launch_for_a_small_combine_and_two_for_a_large_one) {
  const Resources all = everything();
  const CallForm combine{.deterministic = true, .from_sum = true, .slots = 8};
  CHECK_EQ(chosen(even_plan(8, 16), combine, all), "fused");
  CHECK_EQ(chosen(even_plan(8, 16384), combine, all), "pull");
  CHECK(!refused(PathKind::kFused, kEven, kInOrder, all).empty());  // no sum, nothing to fuse
}

TEST(routed_where_rows_are_few) {
  const Resources all = everything();
  const Plan large = even_plan(8, 4096);
  const CallForm one{.from_sum = true, .routed = true, .slots = 1};
  CHECK_EQ(chosen(large, one, all), "routed");
  CHECK_EQ(chosen(even_plan(8, 8), one, all), "fused");
  const double share = present_share(problem_of(large, one));
  CHECK(share > 0.124 && share < 0.126);
  CHECK_EQ(present_share(problem_of(large, {.from_sum = true, .slots = 1})), 1.0);
  // Nearly every rank has something of every row: the mask is not worth a launch.
  const CallForm many{.from_sum = true, .routed = true, .slots = 64};
  CHECK(chosen(even_plan(2, 16384), many, all) != "routed");
  // Rows that nobody wrote are not sent as they are: local has to leave them to others.
  const CallForm by_experts{.routed = true, .slots = 1};
  CHECK_EQ(chosen(kAlone, by_experts, all), "routed");
  CHECK_EQ(chosen(large, by_experts, all), "routed");
  CHECK(!refused(PathKind::kRouted, large, kAnyOrder, all).empty());
}

TEST(sizes_on_the_device_are_for_own_kernels_alone) {
  const Resources all = everything();
  for (const Plan& plan : {on_the_device(64, 0), on_the_device(64, 32)}) {
    for (const CallForm& form : {kAnyOrder, kInOrder}) {
      CHECK_EQ(chosen(plan, form, all), "pull");
      CHECK_EQ(chosen(plan, form, only_nccl()), "none");
      for (const PathKind kind : {PathKind::kLocal, PathKind::kDirect, PathKind::kPlain,
                                  PathKind::kGrouped, PathKind::kOrdered}) {
        CHECK(!refused(kind, plan, form, all).empty());
      }
    }
    CHECK_EQ(chosen(plan, {.from_sum = true, .slots = 2}, all), "fused");
  }
}

TEST(settings_leave_paths_out) {
  Resources all = everything();
  all.paths = bit_of(PathKind::kOrdered);
  CHECK_EQ(chosen(kEven, kInOrder, all), "ordered");
  CHECK_EQ(chosen(kEven, kAnyOrder, all), "none");
  CHECK_EQ(chosen(kAlone, kAnyOrder, all), "local");
}

TEST(measured_pull_is_what_its_variants_are_judged_by) {
  const Tuning quick({{PathKind::kPull, DType::kBFloat16, 1 << 14, 1.0},
                      {PathKind::kDirect, DType::kBFloat16, 1 << 14, 5.0}});
  const Tuning slow({{PathKind::kPull, DType::kBFloat16, 1 << 14, 90.0},
                     {PathKind::kDirect, DType::kBFloat16, 1 << 14, 5.0}});
  const Plan plan = even_plan(4, 8);
  CHECK_EQ(chosen(plan, kAnyOrder, everything(), quick), "pull");
  CHECK_EQ(chosen(plan, kAnyOrder, everything(), slow), "direct");
  const CallForm combine{.from_sum = true, .slots = 4};
  CHECK_EQ(chosen(plan, combine, everything(), quick), "fused");
  CHECK_EQ(chosen(plan, combine, everything(), slow), "direct");
}

// From a window, ordinary kernels need a communicator that does not know it.
TEST(plain_needs_a_second_communicator) {
  Resources resources = everything();
  resources.plain = nullptr;
  const Selector selector(LinkRates{}, {});
  for (const Candidate& each : selector.rank(problem_of(kEven, {}), resources)) {
    if (each.path->kind() != PathKind::kPlain) continue;
    CHECK(each.refusal.find("second communicator") != std::string::npos);
  }
  CHECK_EQ(chosen(kGather, kAnyOrder, resources), "plain");  // gathered rows are in no window
}

// A world of one has no communicator, and windows that no reason speaks against. A table that says
// otherwise must not send a call to NCCL.
TEST(nothing_beats_no_work) {
  const Tuning tuning({{PathKind::kDirect, DType::kBFloat16, 1, 0.001},
                       {PathKind::kPlain, DType::kBFloat16, 1, 0.001}});
  Resources alone;
  alone.no_communicator = "a world of one needs none";
  CHECK_EQ(chosen(kAlone, kAnyOrder, alone, tuning), "local");
  CHECK_EQ(chosen(kNothing, kAnyOrder, everything(), tuning), "local");
}

TEST(measured_times_decide) {
  const auto times = [](double direct, double plain) {
    return Tuning({{PathKind::kPlain, DType::kBFloat16, 4096, plain},
                   {PathKind::kPlain, DType::kBFloat16, 65536, plain},
                   {PathKind::kDirect, DType::kBFloat16, 4096, direct},
                   {PathKind::kDirect, DType::kBFloat16, 65536, direct}});
  };
  CHECK_EQ(chosen(kEven, kAnyOrder, everything(), times(10, 20)), "direct");
  CHECK_EQ(chosen(kEven, kAnyOrder, everything(), times(20, 10)), "plain");
  CHECK(times(20, 10).wants(PathKind::kPlain));
  CHECK(!times(10, 20).wants(PathKind::kPlain));
  CHECK(!Tuning().wants(PathKind::kPlain));
  // Predictions do not compete with measurements: they are of another machine.
  const Tuning slow_direct({{PathKind::kDirect, DType::kBFloat16, 4096, 1e6}});
  CHECK_EQ(chosen(kEven, kAnyOrder, everything(), slow_direct), "direct");
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
        problem_of(plan_of(Plan::Kind::kReduceScatter, {rows, rows, rows, rows}), {});
    const double direct = predicted_us(PathKind::kDirect, problem, hopper);
    CHECK(direct < predicted_us(PathKind::kPlain, problem, hopper));
    CHECK(direct < predicted_us(PathKind::kOrdered, problem, hopper));
    // Start included: Blackwell's published figures are of whole calls, Hopper's of the kernel.
    const double start = blackwell.start_us - hopper.start_us;
    CHECK(predicted_us(PathKind::kDirect, problem, blackwell) - start < direct);
    CHECK_EQ(predicted_us(PathKind::kPull, problem, hopper), direct);
    const Problem larger = problem_of(
        plan_of(Plan::Kind::kReduceScatter, {rows + 1, rows + 1, rows + 1, rows + 1}), {});
    CHECK(predicted_us(PathKind::kDirect, larger, hopper) > direct);
  }
}

// By hand: 4 ranks, 1 MB each, of which 3 come over the link; 2 experts per token.
TEST(predictions_are_the_formulas_of_the_documents) {
  const LinkRates rates{
      .start_us = 10.0, .link_bytes_per_us = 1000.0, .memory_bytes_per_us = 10'000.0};
  Problem problem{.world = 4, .bytes = 1'000'000, .total_bytes = 4'000'000};
  const auto us = [&](PathKind kind) { return predicted_us(kind, problem, rates); };
  const auto near = [](double one, double other) { return std::abs(one - other) < 1e-6; };
  CHECK(near(us(PathKind::kLocal), 200.0));
  CHECK(near(us(PathKind::kDirect), 3010.0));
  CHECK(near(us(PathKind::kPull), 3010.0));
  problem.form = {.from_sum = true, .slots = 2};
  CHECK(near(us(PathKind::kPull), 3010.0 + kLaunchUs + 400.0 * 1.5));
  CHECK(near(us(PathKind::kFused), 3010.0 + 2 * 400.0 * 1.5));
  problem.form.routed = true;
  const double share = 1.0 - 0.75 * 0.75;
  CHECK(near(us(PathKind::kRouted), 10.0 + 3000.0 * share + 2 * kLaunchUs + 400.0 * (0.5 + share)));
  problem = {.world = 1, .bytes = 16, .total_bytes = 16};
  CHECK(near(us(PathKind::kLocal), kCopyUs));
}

TEST(candidates_come_best_first) {
  const Selector selector(LinkRates{}, {});
  const auto candidates = selector.rank(problem_of(kEven, {}), everything());
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
