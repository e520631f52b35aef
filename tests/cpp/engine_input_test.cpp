// tsan
// Wrong input and disagreement: an error before anything is written, and the group goes on.

#include <atomic>
#include <thread>

#include "calls.h"
#include "collectives/engine.h"
#include "kernels/cpu/kernels.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

// The group still works.
void go_on(Engine& engine) {
  for (int call = 0; call < 4; ++call) {
    do_call(engine, reduce_plan(Shape::even(engine.world(), 2, 8), engine.rank()),
            call % 2 == 0 ? Path::kPool : Path::kStaged, call);
  }
  engine.check();
}

bool untouched(const void* memory, size_t bytes) {
  const auto* const first = static_cast<const unsigned char*>(memory);
  for (size_t i = 0; i < bytes; ++i) {
    if (first[i] != 0) return false;
  }
  return true;
}

}  // namespace

TEST(a_reduce_without_acquire) {
  ThreadGroup group(2);
  group.run([](Engine& engine) {
    for (const Plan::Kind kind : {Plan::Kind::kReduceScatter, Plan::Kind::kAllGather}) {
      const Plan plan = make_plan(kind, Shape::even(2, 2, 8), engine.rank(), DType::kFloat32);
      const auto buffer = engine.acquire(Role::kCombine, 0, plan.input_bytes());
      fill(buffer->window.base, plan, 1);
      const Memory output(plan.output_bytes());
      CHECK(run_from_pool(engine, plan, *buffer, output.get()));
      // One rank errs, the other goes on as it should.
      if (engine.rank() == 0) {
        const Memory other(plan.output_bytes());
        CHECK_THROWS_WITH(run_from_pool(engine, plan, *buffer, other.get()), InvalidArgument,
                          "acquire it again");
        CHECK(untouched(other.get(), plan.output_bytes()));
      }
      go_on(engine);
    }
  });
}

TEST(a_buffer_of_another_lane_or_role) {
  ThreadGroup group(2);
  group.run([](Engine& engine) {
    const Shape shape = Shape::even(2, 2, 8);
    const auto buffer = engine.acquire(Role::kCombine, 3, 1000);
    const Memory output(1000);
    CHECK_THROWS_WITH(
        engine.reduce_scatter(reduce_plan(shape, engine.rank()), *buffer, 0, output.get(), 1),
        InvalidArgument, "acquired for combine, lane 3, and is used for combine, lane 0");
    CHECK_THROWS_WITH(
        engine.all_gather(gather_plan(shape, engine.rank(), DType::kFloat32, {Role::kDispatch, 3}),
                          *buffer, 0, output.get(), 1),
        InvalidArgument, "is used for dispatch, lane 3");
    CHECK(untouched(output.get(), 1000));
    go_on(engine);
  });
}

TEST(a_plan_of_another_operation_or_group) {
  ThreadGroup group(2);
  Engine& engine = group.engine(0);
  const Shape shape = Shape::even(2, 2, 8);
  const auto buffer = engine.acquire(Role::kCombine, 0, 1000);
  const Memory memory(1000);
  const Memory output(1000);
  const auto refused = [&](const Plan& plan, const std::string& words) {
    CHECK_THROWS_WITH(engine.reduce_scatter(plan, *buffer, 0, output.get(), 1), InvalidArgument,
                      words);
    CHECK_THROWS_WITH(engine.reduce_scatter_staged(plan, memory.get(), output.get(), 1),
                      InvalidArgument, words);
  };
  refused(gather_plan(shape, 0), "reduce_scatter, rank 0: the plan is one of all_gather");
  refused(reduce_plan(shape, 1), "one of rank 1 in a world of 2, not of 2");
  refused(reduce_plan(Shape::even(3, 2, 8), 0), "one of rank 0 in a world of 3, not of 2");
  CHECK_THROWS_WITH(engine.all_gather(reduce_plan(shape, 0), *buffer, 0, output.get(), 1),
                    InvalidArgument, "all_gather, rank 0: the plan is one of reduce_scatter");
  group.run([](Engine& each) { go_on(each); });
}

// Which rank is at fault is the first thing that one wants to know of a job.
TEST(errors_name_the_rank) {
  ThreadGroup group(2);
  Engine& engine = group.engine(1);
  const Plan plan = reduce_plan(Shape::even(2, 2, 8), 1);
  const auto buffer = engine.acquire(Role::kCombine, 0, 1000);
  CHECK_THROWS_WITH(engine.reduce_scatter(plan, *buffer, 0, buffer->window.base, 1),
                    InvalidArgument, "reduce_scatter, rank 1: out overlaps a window");
  CHECK_THROWS_WITH(engine.reduce_scatter(plan, *buffer, 0, nullptr, 1), InvalidArgument,
                    "reduce_scatter, rank 1: out is null");
  CHECK_THROWS_WITH(engine.reduce_scatter(plan, *buffer, 9999, nullptr, 1), InvalidArgument,
                    "reduce_scatter, rank 1: 128 bytes at offset 9999");
  CHECK_THROWS_WITH(engine.acquire(Role::kCombine, 77, 8), InvalidArgument,
                    "acquire, rank 1: lane 77 is not in 0..15");
  CHECK_THROWS_WITH(engine.agree(Role::kCombine, 77, ""), InvalidArgument,
                    "fallback, rank 1: lane 77");
  CHECK_THROWS_WITH(engine.check_call(77, ""), InvalidArgument, "check, rank 1: lane 77");
  CHECK_THROWS_WITH(engine.reserve({Role::kCombine}, 77, 8, false), InvalidArgument,
                    "reserve, rank 1: lanes=77");
  CHECK_THROWS_WITH(engine.reserve({}, 1, 8, false), InvalidArgument,
                    "reserve, rank 1: no role is given");
  CHECK_THROWS_WITH(reduce_plan(Shape::packed({-1, 1}, 8), 1), InvalidArgument,
                    "reduce_scatter, rank 1: rows of rank 0");
  engine.close();
  CHECK_THROWS_WITH(engine.check(), Closed, "check, rank 1: the group is closed");
}

TEST(rows_that_do_not_fit_in_the_buffer) {
  ThreadGroup group(2);
  group.run([](Engine& engine) {
    const Plan plan = reduce_plan(Shape::even(2, 2, 8), engine.rank());
    const auto buffer = engine.acquire(Role::kCombine, 0, plan.input_bytes());
    const Memory output(plan.output_bytes());
    const size_t room = buffer->window.bytes - plan.input_bytes();
    for (const size_t offset : {room + 1, buffer->window.bytes + 1, SIZE_MAX, SIZE_MAX - 100}) {
      CHECK_THROWS_WITH(engine.reduce_scatter(plan, *buffer, offset, output.get(), 1),
                        InvalidArgument, "exceed the buffer's");
    }
    fill(buffer->window.base + room, plan, 1);
    CHECK(engine.reduce_scatter(plan, *buffer, room, output.get(), 1));
    check_output(output.get(), plan, 1);
    go_on(engine);
  });
}

TEST(output_that_overlaps_the_pool) {
  ThreadGroup group(2);
  group.run([](Engine& engine) {
    for (const Plan::Kind kind : {Plan::Kind::kReduceScatter, Plan::Kind::kAllGather}) {
      const Plan plan = make_plan(kind, Shape::even(2, 2, 8), engine.rank(), DType::kFloat32);
      const auto other_lane = engine.acquire(Role::kDispatch, 5, 4000);
      const auto buffer = engine.acquire(Role::kCombine, 0, plan.input_bytes());
      const Memory input(plan.input_bytes());
      fill(buffer->window.base, plan, 1);
      std::byte* const end = other_lane->window.base + other_lane->window.bytes;
      for (std::byte* output : {other_lane->window.base, buffer->window.base + 4, end - 4}) {
        CHECK_THROWS_WITH(run_from_pool(engine, plan, *buffer, output), InvalidArgument,
                          "out overlaps a ");
        CHECK_THROWS_WITH(run_staged(engine, plan, input.get(), output), InvalidArgument,
                          "out overlaps a ");
      }
      CHECK_THROWS_WITH(run_from_pool(engine, plan, *buffer, nullptr), InvalidArgument, "null");
      CHECK_THROWS_WITH(run_staged(engine, plan, input.get(), nullptr), InvalidArgument, "null");
      const Memory output(plan.output_bytes());
      CHECK(run_from_pool(engine, plan, *buffer, output.get()));  // still acquired
      check_output(output.get(), plan, 1);
      go_on(engine);
    }
  });
}

TEST(lanes_and_rows_outside_the_range) {
  ThreadGroup group(2);
  Engine& engine = group.engine(0);
  CHECK_THROWS_WITH(engine.acquire(Role::kCombine, -1, 8), InvalidArgument, "lane -1");
  CHECK_THROWS_WITH(engine.acquire(Role::kCombine, kMaxLanes, 8), InvalidArgument, "lane 16");
  CHECK_THROWS_WITH(engine.agree(Role::kCombine, 99, "x"), InvalidArgument, "lane 99");
  CHECK_THROWS_WITH(engine.check_call(-5, "x"), InvalidArgument, "lane -5");
  CHECK_THROWS_WITH(engine.reserve({Role::kCombine}, 0, 8, false), InvalidArgument, "lanes=0");
  CHECK_THROWS_WITH(engine.reserve({Role::kCombine}, 17, 8, false), InvalidArgument, "lanes=17");

  CHECK_THROWS_WITH(reduce_plan(Shape::packed({-1, 2}, 8), 0), InvalidArgument,
                    "rank 0 (-1 from 0)");
  CHECK_THROWS_WITH(reduce_plan(Shape{{0, 3}, {3, 2}, 4, 8}, 0), InvalidArgument,
                    "rank 1 (2 from 3) lie outside 4");
  CHECK_THROWS_WITH(reduce_plan(Shape{{-1, 0}, {1, 1}, 4, 8}, 0), InvalidArgument, "from -1");
  CHECK_THROWS(reduce_plan(Shape{{0}, {1, 1}, 4, 8}, 0), InvalidArgument);
  CHECK_THROWS(reduce_plan(Shape{{}, {}, 4, 8}, 0), InvalidArgument);
  CHECK_THROWS(reduce_plan(Shape::packed({1, 1}, -8), 0), InvalidArgument);
  CHECK_THROWS(reduce_plan(Shape::packed({1, 1}, 8), 2), InvalidArgument);
}

TEST(different_calls_are_a_mismatch_on_all_ranks) {
  for (const int world : {2, 4}) {
    ThreadGroup group(world);
    group.run([&](Engine& engine) {
      for (int call = 0; call < 20; ++call) {
        // One rank sees the call differently; a different one each time.
        const bool odd_one = call % world == engine.rank();
        const Shape shape = Shape::even(world, 2, odd_one ? 9 : 8);
        const Plan plan = reduce_plan(shape, engine.rank());
        const Memory input(plan.input_bytes());
        const Memory output(plan.output_bytes());
        if (call % 3 == 0) {
          const auto buffer = engine.acquire(Role::kCombine, 0, plan.input_bytes());
          CHECK_THROWS_WITH(engine.reduce_scatter(plan, *buffer, 0, output.get(), 1), Mismatch,
                            "hidden=9");
          // The buffer counts as reduced: peers may have been about to read it.
          CHECK_THROWS(engine.reduce_scatter(plan, *buffer, 0, output.get(), 1), InvalidArgument);
        } else {
          CHECK_THROWS_WITH(engine.reduce_scatter_staged(plan, input.get(), output.get(), 1),
                            Mismatch, "hidden=8");
        }
        CHECK(untouched(output.get(), plan.output_bytes()));
        do_call(engine, reduce_plan(Shape::even(world, 2, 8), engine.rank()), Path::kPool, call);
      }
      CHECK_THROWS_WITH(engine.agree(Role::kCombine, 0, "rank " + std::to_string(engine.rank())),
                        Mismatch, "Rank 0: rank 0. Rank 1: rank 1");
      CHECK_THROWS_WITH(engine.check_call(0, engine.rank() == 0 ? "this" : "that"), Mismatch,
                        "Rank 0: this. Rank 1: that");
      go_on(engine);
    });
  }
}

TEST(an_operation_against_another_is_a_mismatch) {
  ThreadGroup group(2);
  group.run([](Engine& engine) {
    const Shape shape = Shape::even(2, 2, 8);
    const Memory memory(1000);
    const Memory output(1000);
    const Plan reduce = reduce_plan(shape, engine.rank());
    const Plan gather = gather_plan(shape, engine.rank());
    CHECK_THROWS_WITH(
        run_staged(engine, engine.rank() == 0 ? reduce : gather, memory.get(), output.get()),
        Mismatch, "all_gather");
    if (engine.rank() == 0) {
      CHECK_THROWS_WITH(engine.agree(Role::kCombine, 0, "fallback"), Mismatch, "fallback");
    } else {
      CHECK_THROWS_WITH(run_staged(engine, reduce, memory.get(), output.get()), Mismatch,
                        "fallback");
    }
    go_on(engine);
  });
}

TEST(a_second_thread_on_a_lane_is_refused) {
  ThreadGroup group(2);
  std::atomic<bool> refused = false;
  group.run([&](Engine& engine) {
    const Plan plan = reduce_plan(Shape::even(2, 2, 8), engine.rank());
    const auto buffer = engine.acquire(Role::kCombine, 0, plan.input_bytes());
    fill(buffer->window.base, plan, 1);
    const Memory output(plan.output_bytes());
    if (engine.rank() == 0) {
      std::thread second([&] {
        while (group.block(0).calls[0][0].epoch.load() == 0) std::this_thread::yield();
        const Memory other(plan.input_bytes());
        try {
          engine.reduce_scatter_staged(plan, other.get(), other.get(), 1);
        } catch (const InvalidArgument& error) {
          refused = std::string(error.what()).find("rank 0: another thread") != std::string::npos;
        }
      });
      CHECK(engine.reduce_scatter(plan, *buffer, 0, output.get(), 1));
      second.join();
    } else {
      while (!refused) std::this_thread::yield();  // rank 0 is in its call as long as this
      CHECK(engine.reduce_scatter(plan, *buffer, 0, output.get(), 1));
    }
    check_output(output.get(), plan, 1);
    go_on(engine);
  });
}

int main(int argc, char** argv) {
#if defined(__SANITIZE_THREAD__)
  kernels::set_isa("plain");  // the sanitizer does not see every access of vector instructions
#endif
  return run_all(argc, argv);
}
