// tsan
// Calls with a routing: rows that nobody wrote are not read, ranks with different routing hear of
// it.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "calls.h"
#include "collectives/engine.h"
#include "collectives/routing.h"
#include "kernels/cpu/kernels.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

constexpr int64_t kSlots = 2;
constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

Plan routed_plan(const Shape& shape, int rank, int lane = 0) {
  Plan plan = reduce_plan(shape, rank, DType::kFloat32, {Role::kCombine, lane});
  plan.routed = true;
  plan.text += " routed";
  plan.seal();
  return plan;
}

// One expert per rank and one that is nobody's; what tokens choose depends on the call.
struct Choice {
  Choice(const Plan& plan, int call) {
    const int world = static_cast<int>(plan.counts.size());
    for (int rank = 0; rank < world; ++rank) experts.push_back(rank);
    experts.push_back(-1);
    for (int64_t i = 0; i < plan.rows * kSlots; ++i) {
      ids.push_back(static_cast<int32_t>((i * 7 + i / 3 + call) % (world + 3)) - 1);
    }
  }

  Routing routing(const Plan& plan) const {
    return {plan.rows,
            plan.begins,
            plan.counts,
            {.ids = ids.data(),
             .expert_to_rank = experts.data(),
             .slots = kSlots,
             .experts = static_cast<int64_t>(experts.size()),
             .world = static_cast<int>(plan.counts.size())}};
  }

  bool has(int rank, int64_t row, int64_t slot) const {
    const int32_t id = ids[static_cast<size_t>(row * kSlots + slot)];
    return id >= 0 && static_cast<size_t>(id) < experts.size() &&
           experts[static_cast<size_t>(id)] == rank;
  }
  bool has(int rank, int64_t row) const { return has(rank, row, 0) || has(rank, row, 1); }

  std::vector<int32_t> experts;
  std::vector<int32_t> ids;
};

void check_routed(const void* output, const Plan& plan, const Choice& choice, int call) {
  for (int64_t row = 0; row < plan.own_count(); ++row) {
    for (int64_t column = 0; column < plan.hidden; ++column) {
      const int64_t token = plan.own_begin() + row;
      int expected = 0;
      for (int rank = 0; rank < static_cast<int>(plan.counts.size()); ++rank) {
        if (choice.has(rank, token)) expected += value(rank, token, column, call);
      }
      const float found = get(output, plan.dtype, row * plan.hidden + column);
      CHECK_MSG(found == static_cast<float>(expected),
                plan.text + ": row " + std::to_string(token) + ": " + std::to_string(found) +
                    " != " + std::to_string(expected));
    }
  }
}

// A rank's rows, where it has an expert; NaN elsewhere, padding included.
void fill_routed(float* rows, const Plan& plan, const Choice& choice, int call) {
  for (int64_t i = 0; i < plan.rows * plan.hidden; ++i) rows[i] = kPoison;
  for (size_t owner = 0; owner < plan.counts.size(); ++owner) {
    for (int64_t row = plan.begins[owner]; row < plan.begins[owner] + plan.counts[owner]; ++row) {
      if (!choice.has(plan.rank, row)) continue;
      for (int64_t column = 0; column < plan.hidden; ++column) {
        rows[row * plan.hidden + column] = static_cast<float>(value(plan.rank, row, column, call));
      }
    }
  }
}

void reduce_rightly(Engine& engine, const Plan& plan, bool staged, int call) {
  const Choice choice(plan, call);
  const Routing routing = choice.routing(plan);
  const Memory output(plan.output_bytes());
  if (staged) {
    const Memory input(plan.input_bytes());
    fill_routed(static_cast<float*>(input.get()), plan, choice, call);
    CHECK(engine.reduce_scatter_staged(plan, input.get(), output.get(), 1, &routing));
  } else {
    const auto buffer = engine.acquire(plan.role, plan.lane, plan.input_bytes());
    fill_routed(reinterpret_cast<float*>(buffer->window.base), plan, choice, call);
    CHECK(engine.reduce_scatter(plan, *buffer, 0, output.get(), 1, &routing));
  }
  check_routed(output.get(), plan, choice, call);
}

// Expert output in every slot: two terms per row where both slots are here, adding up to `value`.
void combine_rightly(Engine& engine, const Plan& plan, int call) {
  const Choice choice(plan, call);
  const Routing routing = choice.routing(plan);
  std::vector<float> experts(static_cast<size_t>(plan.rows * kSlots * plan.hidden), kPoison);
  for (int64_t row = 0; row < plan.rows; ++row) {
    const bool both = choice.has(plan.rank, row, 0) && choice.has(plan.rank, row, 1);
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      if (!choice.has(plan.rank, row, slot)) continue;
      for (int64_t column = 0; column < plan.hidden; ++column) {
        const int whole = value(plan.rank, row, column, call);
        const int part = !both ? whole : slot == 0 ? 100 : whole - 100;
        experts[static_cast<size_t>((row * kSlots + slot) * plan.hidden + column)] =
            static_cast<float>(part);
      }
    }
  }
  const auto buffer = engine.acquire(plan.role, plan.lane, plan.input_bytes());
  auto* const window = reinterpret_cast<float*>(buffer->window.base);
  for (int64_t i = 0; i < plan.rows * plan.hidden; ++i) window[i] = kPoison;
  const kernels::TopkReduceArgs sum{.input = experts.data(),
                                    .tokens = plan.rows,
                                    .slots = kSlots,
                                    .hidden = plan.hidden,
                                    .input_type = DType::kFloat32,
                                    .output_type = DType::kFloat32};
  const Memory output(plan.output_bytes());
  CHECK(engine.combine(plan, sum, {}, output.get(), 1, &routing) == Combined::kDone);
  check_routed(output.get(), plan, choice, call);
  for (int64_t row = 0; row < plan.rows; ++row) {
    if (!choice.has(plan.rank, row)) CHECK(std::isnan(window[row * plan.hidden]));
  }
}

}  // namespace

TEST(routed_calls_among_dense_ones) {
  for (const int world : {1, 2, 3, 4}) {
    ThreadGroup group(world);
    group.run([&](Engine& engine) {
      std::vector<int64_t> counts(static_cast<size_t>(world), 3);
      counts[0] = 0;
      counts.back() = 5;
      for (const Shape& shape : {Shape::packed(counts, 24), Shape::padded(counts, 7, 5)}) {
        const Plan plan = routed_plan(shape, engine.rank());
        const Plan dense = reduce_plan(shape, engine.rank());
        for (int call = 0; call < 24; ++call) {
          switch (call % 4) {
            case 0:
              combine_rightly(engine, plan, call);
              break;
            case 1:
              reduce_rightly(engine, plan, false, call);
              break;
            case 2:
              reduce_rightly(engine, plan, true, call);
              break;
            default:
              do_call(engine, dense, call % 8 == 3 ? Path::kPool : Path::kStaged, call);
          }
        }
      }
    });
    CHECK_EQ(group.engine(0).counts().routed.load(), uint64_t{24});
    CHECK_EQ(group.engine(0).counts().routed_staged.load(), uint64_t{12});
  }
}

TEST(lanes_with_routing_of_their_own) {
  ThreadGroup group(2);
  group.run([&](Engine& engine) {
    CHECK(run_threads(3, [&engine](int lane) {
      const Plan plan = routed_plan(Shape::even(2, 4, 16), engine.rank(), lane);
      for (int call = 0; call < 40; ++call) combine_rightly(engine, plan, 3 * call + lane);
    }));
  });
}

TEST(ranks_with_different_routing_all_hear_of_it) {
  ThreadGroup group(3);
  group.run([&](Engine& engine) {
    const Plan plan = routed_plan(Shape::even(3, 4, 8), engine.rank());
    const Memory output(plan.output_bytes());
    const Memory input(plan.input_bytes());
    for (int call = 0; call < 6; ++call) {
      Choice choice(plan, 0);
      if (engine.rank() == 2) {
        choice.ids[static_cast<size_t>(call)] = choice.ids[static_cast<size_t>(call)] == 0 ? 1 : 0;
      }
      const Routing routing = choice.routing(plan);
      if (routing.hash() == Choice(plan, 0).routing(plan).hash() && engine.rank() == 2) {
        choice.ids[0] = choice.ids[1] = 5;  // that change made no difference to any mask
      }
      const Routing another = choice.routing(plan);
      CHECK_THROWS_WITH(
          engine.reduce_scatter_staged(plan, input.get(), output.get(), 1, &another), Mismatch,
          "routing differs: topk_ids and expert_to_rank give other ranks for the rows on rank 2");
      reduce_rightly(engine, plan, call % 2 == 0, call);  // the group goes on
    }
  });
}

TEST(a_rank_without_routing_makes_another_call) {
  ThreadGroup group(2);
  group.run([&](Engine& engine) {
    const Shape shape = Shape::even(2, 4, 8);
    const Plan routed = routed_plan(shape, engine.rank());
    const Plan dense = reduce_plan(shape, engine.rank());
    const Memory output(dense.output_bytes());
    const Memory input(dense.input_bytes());
    const Routing routing = Choice(routed, 1).routing(routed);
    const auto run = [&] {
      return engine.rank() == 0
                 ? engine.reduce_scatter_staged(dense, input.get(), output.get(), 1)
                 : engine.reduce_scatter_staged(routed, input.get(), output.get(), 1, &routing);
    };
    CHECK_THROWS_WITH(run(), Mismatch, "ranks made different calls");
    reduce_rightly(engine, routed, true, 2);
  });
}

TEST(plans_and_routings_that_do_not_fit) {
  ThreadGroup group(2);
  group.run([&](Engine& engine) {
    const Plan routed = routed_plan(Shape::even(2, 4, 8), engine.rank());
    const Plan dense = reduce_plan(Shape::even(2, 4, 8), engine.rank());
    const Plan longer = routed_plan(Shape::even(2, 5, 8), engine.rank());
    const Routing routing = Choice(routed, 0).routing(routed);
    const Memory output(longer.output_bytes());
    const Memory input(longer.input_bytes());
    const auto run = [&](const Plan& plan, const Routing* with) {
      return engine.reduce_scatter_staged(plan, input.get(), output.get(), 1, with);
    };
    CHECK_THROWS_WITH(run(routed, nullptr), InvalidArgument, "there is no routing");
    CHECK_THROWS_WITH(run(dense, &routing), InvalidArgument, "there is a routing");
    CHECK_THROWS_WITH(run(longer, &routing), InvalidArgument, "the routing has 8 rows");
    kernels::TopkReduceArgs sum{.tokens = 8,
                                .slots = 3,
                                .hidden = 8,
                                .input_type = DType::kFloat32,
                                .output_type = DType::kFloat32};
    CHECK_THROWS_WITH(engine.combine(routed, sum, {}, output.get(), 1, &routing), InvalidArgument,
                      "the sum is of [8, 3] slots, the routing of [8, 2]");
    reduce_rightly(engine, routed, false, 1);
  });
}

TEST(rows_that_the_experts_have_summed) {
  ThreadGroup group(2);
  group.run([&](Engine& engine) {
    const Plan plan = routed_plan(Shape::even(2, 4, 8), engine.rank());
    for (int call = 0; call < 4; ++call) {
      const Choice choice(plan, call);
      const Routing routing = choice.routing(plan);
      std::vector<float> rows(static_cast<size_t>(plan.rows * plan.hidden));
      fill_routed(rows.data(), plan, choice, call);
      engine.acquire(plan.role, plan.lane, plan.input_bytes());
      const kernels::TopkReduceArgs sum{.input = rows.data(),
                                        .tokens = plan.rows,
                                        .slots = 1,
                                        .hidden = plan.hidden,
                                        .input_type = DType::kFloat32,
                                        .output_type = DType::kFloat32};
      const Memory output(plan.output_bytes());
      CHECK(engine.combine(plan, sum, {}, output.get(), 1, &routing) == Combined::kDone);
      check_routed(output.get(), plan, choice, call);
    }
  });
}

TEST(a_rank_without_memory_sends_all_to_the_fallback) {
  ThreadGroup group(2);
  group.run([&](Engine& engine) {
    const Plan plan = routed_plan(Shape::even(2, 2, 8), engine.rank());
    const Routing routing = Choice(plan, 0).routing(plan);
    const Memory output(plan.output_bytes());
    const Memory input(plan.input_bytes());
    if (engine.rank() == 1) group.source(1).limit_bytes = 1;
    CHECK(!engine.reduce_scatter_staged(plan, input.get(), output.get(), 1, &routing));
    if (engine.rank() == 1) group.source(1).limit_bytes = 0;
    engine.agree(Role::kCombine, 0, "the fallback");
    reduce_rightly(engine, plan, true, 1);
  });
}

int main(int argc, char** argv) {
#if defined(__SANITIZE_THREAD__)
  kernels::set_isa("plain");  // the sanitizer does not see every access of vector instructions
#endif
  return run_all(argc, argv);
}
