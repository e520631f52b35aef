// tsan
// combine: one call that does what acquire, topk_reduce and reduce_scatter do one after the other.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "calls.h"
#include "collectives/engine.h"
#include "kernels/cpu/kernels.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

constexpr int64_t kSlots = 2;

// What a rank's experts made: `slots` rows per token, which add up to `fill`'s numbers.
struct Experts {
  Experts(const Plan& plan, int call)
      : rows(static_cast<size_t>(plan.rows * kSlots * plan.hidden)) {
    for (int64_t row = 0; row < plan.rows; ++row) {
      for (int64_t column = 0; column < plan.hidden; ++column) {
        const auto at = static_cast<size_t>(row * kSlots * plan.hidden + column);
        rows[at] = 100.0f;
        rows[at + static_cast<size_t>(plan.hidden)] =
            static_cast<float>(value(plan.rank, row, column, call) - 100);
      }
    }
  }

  kernels::TopkReduceArgs sum(const Plan& plan) const {
    return {.input = rows.data(),
            .tokens = plan.rows,
            .slots = kSlots,
            .hidden = plan.hidden,
            .input_type = DType::kFloat32,
            .output_type = plan.dtype};
  }

  CombineInputs inputs() const {
    return {
        MemoryRange{reinterpret_cast<const std::byte*>(rows.data()), rows.size() * sizeof(float)},
        MemoryRange{}, MemoryRange{}};
  }

  std::vector<float> rows;
};

Combined combine(Engine& engine, const Plan& plan, int call, void* output) {
  const Experts experts(plan, call);
  return engine.combine(plan, experts.sum(plan), experts.inputs(), output, 1);
}

void combine_rightly(Engine& engine, const Plan& plan, int call) {
  const Memory output(plan.output_bytes());
  CHECK(combine(engine, plan, call, output.get()) == Combined::kDone);
  check_output(output.get(), plan, call);
}

}  // namespace

TEST(the_same_rows_as_by_three_calls) {
  for (const int world : {1, 2, 3}) {
    ThreadGroup group(world);
    group.run([&](Engine& engine) {
      std::vector<int64_t> counts(static_cast<size_t>(world), 3);
      counts[0] = 0;
      counts.back() = 5;
      const Shape shape = Shape::packed(counts, 24);
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        const Plan plan = reduce_plan(shape, engine.rank(), dtype);
        CHECK(engine.acquire(Role::kCombine, 0, plan.input_bytes()) != nullptr);
        // Among the others, so that what one call leaves behind is what the next one finds.
        for (int call = 0; call < 30; ++call) {
          if (call % 3 == 2) {
            do_call(engine, plan, call % 2 == 0 ? Path::kPool : Path::kStaged, call);
          } else {
            combine_rightly(engine, plan, call);
          }
        }
      }
    });
    CHECK(group.engine(0).counts().pull.load() >= 40);
  }
}

TEST(lanes_do_not_meet) {
  ThreadGroup group(2);
  group.run([&](Engine& engine) {
    CHECK(run_threads(3, [&engine](int lane) {
      const Plan plan = reduce_plan(Shape::even(2, 4, 16), engine.rank(), DType::kFloat32,
                                    {Role::kCombine, lane});
      engine.acquire(Role::kCombine, lane, plan.input_bytes());
      for (int call = 0; call < 50; ++call) combine_rightly(engine, plan, call + lane);
    }));
  });
}

TEST(nothing_happens_without_a_window) {
  ThreadGroup group(2);
  group.run([](Engine& engine) {
    const Plan plan = reduce_plan(Shape::even(2, 2, 8), engine.rank());
    const Memory output(plan.output_bytes());
    CHECK(combine(engine, plan, 0, output.get()) == Combined::kUnready);
    engine.acquire(Role::kCombine, 0, plan.input_bytes());
    const Plan larger = reduce_plan(Shape::even(2, 2 << 20, 8), engine.rank());
    CHECK(engine.combine(larger, Experts(plan, 0).sum(larger), {}, output.get(), 1) ==
          Combined::kUnready);
    combine_rightly(engine, plan, 1);
  });
}

TEST(nothing_happens_where_memory_overlaps) {
  ThreadGroup group(2);
  group.run([](Engine& engine) {
    const Plan plan = reduce_plan(Shape::even(2, 2, 8), engine.rank());
    const auto window = engine.acquire(Role::kCombine, 0, plan.input_bytes());
    const auto other = engine.acquire(Role::kDispatch, 5, plan.input_bytes());
    std::byte* const base = window->window.base;
    Experts experts(plan, 0);
    std::byte* const own = reinterpret_cast<std::byte*>(experts.rows.data());
    const Memory output(plan.output_bytes());
    const auto run = [&](const CombineInputs& inputs, void* out) {
      return engine.combine(plan, experts.sum(plan), inputs, out, 1);
    };
    for (size_t which = 0; which < 3; ++which) {
      CombineInputs inputs = experts.inputs();
      inputs[which] = {base + plan.input_bytes() - 1, 4};
      CHECK(run(inputs, output.get()) == Combined::kUnready);
      inputs[which] = {static_cast<std::byte*>(output.get()), 1};
      CHECK(run(inputs, output.get()) == Combined::kUnready);
    }
    CHECK(run(experts.inputs(), own) == Combined::kUnready);
    CHECK(run(experts.inputs(), base) == Combined::kUnready);
    CHECK(run(experts.inputs(), other->window.base) == Combined::kUnready);
    CHECK(run(experts.inputs(), nullptr) == Combined::kUnready);
    for (int64_t i = 0; i < plan.rows * plan.hidden; ++i) CHECK(get(base, plan.dtype, i) == 0);
    // What lies behind the rows in the window is nobody's yet.
    CombineInputs behind = experts.inputs();
    behind[1] = {base + plan.input_bytes(), 4};
    CHECK(run(behind, output.get()) == Combined::kDone);
    combine_rightly(engine, plan, 3);
  });
}

TEST(wrong_arguments) {
  ThreadGroup group(2);
  group.run([](Engine& engine) {
    const Plan plan = reduce_plan(Shape::even(2, 2, 8), engine.rank());
    engine.acquire(Role::kCombine, 0, plan.input_bytes());
    const Experts experts(plan, 0);
    const Memory output(plan.output_bytes());
    const auto run = [&](const Plan& with, const kernels::TopkReduceArgs& sum) {
      return engine.combine(with, sum, experts.inputs(), output.get(), 1);
    };
    kernels::TopkReduceArgs sum = experts.sum(plan);
    sum.tokens += 1;
    CHECK_THROWS_WITH(run(plan, sum), InvalidArgument, "combine, rank");
    sum = experts.sum(plan);
    sum.hidden = 7;
    CHECK_THROWS_WITH(run(plan, sum), InvalidArgument, "the sum is [4, 7] float32");
    sum = experts.sum(plan);
    sum.output_type = DType::kBFloat16;
    CHECK_THROWS_WITH(run(plan, sum), InvalidArgument, "bfloat16");
    CHECK_THROWS_WITH(run(gather_plan(Shape::even(2, 2, 8), engine.rank()), experts.sum(plan)),
                      InvalidArgument, "the plan is one of all_gather");
    const std::vector<int32_t> index(static_cast<size_t>(plan.rows * kSlots), 1 << 20);
    sum = experts.sum(plan);
    sum.index = index.data();
    sum.pairs = plan.rows * kSlots;
    CHECK_THROWS_WITH(run(plan, sum), InvalidArgument, "index[0, 0] is 1048576");
    combine_rightly(engine, plan, 2);
    engine.check();
  });
}

// Every rank's rows but the padding, which may be anything and stays what it was in the window.
TEST(padding_is_never_summed) {
  ThreadGroup group(3);
  group.run([](Engine& engine) {
    const Shape shape = Shape::padded({2, 0, 3}, 4, 8);
    const Plan plan = reduce_plan(shape, engine.rank());
    const auto buffer = engine.acquire(Role::kCombine, 0, plan.input_bytes());
    std::memset(buffer->window.base, 0xff, plan.input_bytes());
    combine_rightly(engine, plan, 5);
    const std::byte* const untouched = buffer->window.base + plan.bytes_of(4);  // rank 1's rows
    CHECK(std::all_of(untouched, untouched + plan.bytes_of(4),
                      [](std::byte byte) { return byte == std::byte{0xff}; }));
    engine.check();
  });
}

TEST(a_rank_without_a_window_sends_all_to_the_fallback) {
  ThreadGroup group(2);
  group.run([&](Engine& engine) {
    const Plan plan = reduce_plan(Shape::even(2, 2, 8), engine.rank());
    const Memory output(plan.output_bytes());
    if (engine.rank() == 0) {
      engine.acquire(Role::kCombine, 0, plan.input_bytes());
      CHECK(combine(engine, plan, 0, output.get()) == Combined::kNoWindow);
    } else {
      group.source(1).limit_bytes = 1;
      const Memory input(plan.input_bytes());
      CHECK(!engine.reduce_scatter_staged(plan, input.get(), output.get(), 1));
      group.source(1).limit_bytes = 0;
      engine.acquire(Role::kCombine, 0, plan.input_bytes());
    }
    engine.agree(Role::kCombine, 0, "the fallback");
    combine_rightly(engine, plan, 1);
  });
}

TEST(a_second_thread_on_the_lane) {
  ThreadGroup group(2);
  std::atomic<bool> refused = false;
  group.run([&](Engine& engine) {
    const Plan plan = reduce_plan(Shape::even(2, 2, 8), engine.rank());
    const auto window = engine.acquire(Role::kCombine, 0, plan.input_bytes());
    if (engine.rank() == 1) {
      while (!refused) std::this_thread::yield();
      combine_rightly(engine, plan, 0);
      return;
    }
    std::thread first([&] { combine_rightly(engine, plan, 0); });
    while (window->armed) std::this_thread::yield();  // the first is in the call, and waits
    const Memory output(plan.output_bytes());
    CHECK_THROWS_WITH(combine(engine, plan, 9, output.get()), InvalidArgument, "another thread");
    refused = true;
    first.join();
  });
}

int main(int argc, char** argv) {
#if defined(__SANITIZE_THREAD__)
  kernels::set_isa("plain");  // the sanitizer does not see every access of vector instructions
#endif
  return run_all(argc, argv);
}
