// tsan
// reduce_scatter and all_gather on threads as ranks: every path, shape and mixture, exact values.

#include "collectives/engine.h"

#include <numeric>

#include "calls.h"
#include "kernels/cpu/kernels.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

const Plan::Kind kKinds[] = {Plan::Kind::kReduceScatter, Plan::Kind::kAllGather};
const DType kTypes[] = {DType::kBFloat16, DType::kFloat32};

std::vector<int64_t> uneven(int world) {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < world; ++rank) counts.push_back((rank * 5 + 3) % 7);
  return counts;
}

std::vector<Shape> shapes(int world) {
  std::vector<int64_t> one_has_all(static_cast<size_t>(world), 0);
  one_has_all.back() = 9;
  std::vector<int64_t> counts = uneven(world);
  return {Shape::even(world, 4, 16),   Shape::packed(counts, 37), Shape::packed(one_has_all, 8),
          Shape::padded(counts, 8, 5), Shape::even(world, 0, 16), Shape::even(world, 3, 0),
          Shape::even(world, 1, 1)};
}

// All kinds, types and shapes; `path_of(rank, call)` says where the input lies.
void run_everything(int world, const std::function<Path(int rank, int call)>& path_of) {
  ThreadGroup group(world);
  group.run([&](Engine& engine) {
    int call = 0;
    for (int round = 0; round < 3; ++round) {
      for (const Shape& shape : shapes(world)) {
        for (const Plan::Kind kind : kKinds) {
          for (const DType dtype : kTypes) {
            ++call;
            do_call(engine, make_plan(kind, shape, engine.rank(), dtype),
                    path_of(engine.rank(), call), call);
          }
        }
      }
    }
  });
}

}  // namespace

TEST(from_the_pool_on_every_world) {
  for (const int world : {1, 2, 3, 4, 8}) {
    run_everything(world, [](int, int) { return Path::kPool; });
  }
}

TEST(staged_on_every_world) {
  for (const int world : {1, 2, 3, 4, 8}) {
    run_everything(world, [](int, int) { return Path::kStaged; });
  }
}

TEST(some_ranks_staged_and_others_not) {
  for (const int world : {2, 3, 4, 8}) {
    run_everything(world, [](int rank, int call) {
      return (rank * 3 + call * 7) % 4 < 2 ? Path::kPool : Path::kStaged;
    });
  }
}

TEST(calls_are_counted_by_path) {
  ThreadGroup group(2);
  group.run([](Engine& engine) {
    const Shape shape = Shape::even(2, 2, 8);
    for (int call = 0; call < 3; ++call) {
      do_call(engine, reduce_plan(shape, engine.rank()), Path::kPool, call);
    }
    for (int call = 0; call < 2; ++call) {
      do_call(engine, reduce_plan(shape, engine.rank()), Path::kStaged, call);
    }
    do_call(engine, gather_plan(shape, engine.rank()), Path::kPool, 0);
    do_call(engine, gather_plan(shape, engine.rank()), Path::kStaged, 0);
  });
  const CallCounts& counts = group.engine(1).counts();
  CHECK_EQ(counts.pull.load(), 3u);
  CHECK_EQ(counts.staged.load(), 2u);
  CHECK_EQ(counts.gather.load(), 1u);
  CHECK_EQ(counts.gather_staged.load(), 1u);
}

TEST(windows_of_different_generations) {
  ThreadGroup group(4);
  group.run([](Engine& engine) {
    const int rank = engine.rank();
    for (int call = 0; call < 40; ++call) {
      // Every rank outgrows its buffers at a time of its own.
      const size_t wish = static_cast<size_t>(1 + call / (rank + 1)) * 300;
      engine.acquire(Role::kCombine, 0, wish);
      do_call(engine, reduce_plan(Shape::even(4, 3, 16), rank), Path::kPool, call);
    }
  });
  CHECK(group.engine(0).pool_stats().growths > group.engine(3).pool_stats().growths);
}

TEST(a_view_from_before_growth_is_reduced_after) {
  for (const int world : {2, 4}) {
    ThreadGroup group(world);
    group.run([&](Engine& engine) {
      const Plan plan = reduce_plan(Shape::even(world, 2, 16), engine.rank());
      const Memory output(plan.output_bytes());
      auto old = engine.acquire(Role::kCombine, 0, plan.input_bytes());
      fill(old->window.base, plan, 1);
      const auto grown = engine.acquire(Role::kCombine, 0, 10 * plan.input_bytes());
      CHECK(grown != old);
      fill(grown->window.base, plan, 2);
      engine.trim();
      CHECK(engine.reduce_scatter(plan, *old, 0, output.get(), 1));
      check_output(output.get(), plan, 1);
      CHECK(!engine.rearm(*old));
      CHECK(engine.reduce_scatter(plan, *grown, 0, output.get(), 1));
      check_output(output.get(), plan, 2);
      old.reset();
      engine.trim();
      CHECK_EQ(engine.pool_stats().retired_bytes, size_t{0});
    });
    for (int rank = 0; rank < world; ++rank) {
      CHECK(group.source(rank).dropped() == std::vector<uint32_t>({1}));
    }
  }
}

TEST(an_unrelated_tensor_between_acquire_and_its_reduce) {
  ThreadGroup group(3);
  group.run([](Engine& engine) {
    const Plan plan = reduce_plan(Shape::packed({2, 0, 5}, 33), engine.rank(), DType::kBFloat16);
    const Memory output(plan.output_bytes());
    for (int call = 0; call < 50; ++call) {
      const auto buffer = engine.acquire(Role::kCombine, 0, plan.input_bytes());
      fill(buffer->window.base, plan, call);
      do_call(engine, plan, Path::kStaged, call + 1000);
      do_call(engine, gather_plan(Shape::even(3, 4, 50), engine.rank()), Path::kStaged, call);
      CHECK(engine.acquire(Role::kCombine, 0, plan.input_bytes()) == buffer);  // idempotent
      CHECK(engine.reduce_scatter(plan, *buffer, 0, output.get(), 1));
      check_output(output.get(), plan, call);
    }
  });
}

TEST(rows_at_an_offset_of_the_buffer) {
  ThreadGroup group(2);
  group.run([](Engine& engine) {
    const Plan plan = reduce_plan(Shape::even(2, 3, 7), engine.rank(), DType::kBFloat16);
    const Memory output(plan.output_bytes());
    for (int call = 0; call < 20; ++call) {
      // Not the same on both ranks, and of any alignment.
      const size_t offset = static_cast<size_t>(call + engine.rank()) * 2;
      const auto buffer = engine.acquire(Role::kCombine, 0, plan.input_bytes() + offset);
      fill(buffer->window.base + offset, plan, call);
      CHECK(engine.reduce_scatter(plan, *buffer, offset, output.get(), 1));
      check_output(output.get(), plan, call);
    }
  });
}

TEST(output_in_the_own_rows_of_a_staged_input) {
  for (const Plan::Kind kind : kKinds) {
    ThreadGroup group(3);
    group.run([&](Engine& engine) {
      const Plan plan =
          make_plan(kind, Shape::packed({2, 3, 1}, 16), engine.rank(), DType::kFloat32);
      for (int call = 0; call < 20; ++call) {
        const Memory all(plan.bytes_of(plan.rows));
        auto* const own = static_cast<std::byte*>(all.get()) + plan.bytes_of(plan.own_begin());
        if (kind == Plan::Kind::kReduceScatter) {
          fill(all.get(), plan, call);
          CHECK(run_staged(engine, plan, all.get(), own));
          check_output(own, plan, call);
        } else {
          fill(own, plan, call);
          CHECK(run_staged(engine, plan, own, all.get()));
          check_output(all.get(), plan, call);
        }
      }
    });
  }
}

// Nothing waits here but the calls themselves: writers never overtake readers.
TEST(many_calls_in_a_row) {
  for (const int world : {2, 4}) {
    ThreadGroup group(world);
    group.run([&](Engine& engine) {
      const Plan plan = reduce_plan(Shape::even(world, 1, 16), engine.rank(), DType::kBFloat16);
      for (int call = 0; call < 1500; ++call) {
        do_call(engine, plan, call % 5 == 4 ? Path::kStaged : Path::kPool, call);
      }
    });
  }
}

TEST(epochs_may_wrap_round_at_any_point) {
  for (const uint32_t first : {UINT32_MAX - 20, uint32_t{INT32_MAX} - 20, 0x80000010u}) {
    EngineConfig config = test_config();
    config.wait.deadline_ns = 5'000'000'000;
    ThreadGroup group(2, config, first);
    group.run([](Engine& engine) {
      for (int call = 0; call < 60; ++call) {
        // Growth on the way: a new buffer has seen no call at all.
        const Plan plan = reduce_plan(Shape::even(2, 1 + call, 16), engine.rank());
        do_call(engine, plan, call % 3 == 2 ? Path::kStaged : Path::kPool, call);
      }
      engine.trim();
      CHECK_EQ(engine.pool_stats().retired_bytes, size_t{0});
    });
  }
}

int main(int argc, char** argv) {
#if defined(__SANITIZE_THREAD__)
  kernels::set_isa("plain");  // the sanitizer does not see every access of vector instructions
#endif
  return run_all(argc, argv);
}
