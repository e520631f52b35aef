// tsan
// Outputs in windows for dispatch: rows are summed where they are gathered from, and gathered where
// they are read.

#include "collectives/engine.h"

#include <cstring>

#include "calls.h"
#include "kernels/cpu/kernels.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

std::vector<Shape> shapes(int world) {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < world; ++rank) counts.push_back((rank * 5 + 2) % 4);
  return {Shape::even(world, 3, 16), Shape::packed(counts, 37), Shape::padded(counts, 5, 8)};
}

// The window that all rows are gathered in.
std::shared_ptr<Buffer> whole_window(Engine& engine, const Plan& plan) {
  return engine.acquire(Role::kDispatch, plan.lane, plan.bytes_of(plan.rows));
}

Plan dispatch_plan(const Shape& shape, int rank, int lane = 0) {
  return gather_plan(shape, rank, DType::kFloat32, {Role::kDispatch, lane});
}

}  // namespace

TEST(rows_are_gathered_around_the_own_ones) {
  for (const int world : {1, 2, 4}) {
    ThreadGroup group(world);
    group.run([&](Engine& engine) {
      for (int call = 0; call < 30; ++call) {
        for (const Shape& shape : shapes(world)) {
          const Plan plan = dispatch_plan(shape, engine.rank(), call % 2);
          const auto buffer = whole_window(engine, plan);
          const size_t own = plan.bytes_of(plan.own_begin());
          fill(buffer->window.base + own, plan, call);
          CHECK(engine.all_gather(plan, *buffer, own, buffer->window.base, 1));
          check_output(buffer->window.base, plan, call);
        }
      }
    });
    CHECK_EQ(group.engine(0).counts().gather.load(), 90u);
    CHECK_EQ(group.engine(0).counts().gather_staged.load(), 0u);
  }
}

TEST(sums_are_made_where_they_are_gathered_from) {
  const int world = 3;
  ThreadGroup group(world);
  group.run([&](Engine& engine) {
    for (int call = 0; call < 30; ++call) {
      for (const Shape& shape : shapes(world)) {
        const Plan reduce = reduce_plan(shape, engine.rank());
        const Plan gather = dispatch_plan(shape, engine.rank());
        const auto partial = engine.acquire(Role::kCombine, 0, reduce.input_bytes());
        const auto whole = whole_window(engine, gather);
        fill(partial->window.base, reduce, call);
        const size_t own = gather.bytes_of(gather.own_begin());
        std::byte* const mine = whole->window.base + own;
        CHECK(engine.reduce_scatter(reduce, *partial, 0, mine, 1));
        check_output(mine, reduce, call);
        CHECK(engine.all_gather(gather, *whole, own, whole->window.base, 1));
        for (int rank = 0; rank < world; ++rank) {
          const Plan theirs = reduce_plan(shape, rank);
          const auto at = gather.bytes_of(gather.begins[static_cast<size_t>(rank)]);
          check_output(whole->window.base + at, theirs, call);
        }
      }
    }
  });
}

TEST(a_window_is_an_output_only_while_it_may_be_written) {
  ThreadGroup group(2);
  group.run([](Engine& engine) {
    const Shape shape = Shape::even(2, 2, 8);
    const Plan reduce = reduce_plan(shape, engine.rank());
    const Plan gather = dispatch_plan(shape, engine.rank());
    const Memory input(reduce.input_bytes());
    fill(input.get(), reduce, 1);
    const auto refused = [&](void* output, const char* words) {
      CHECK_THROWS_WITH(engine.reduce_scatter_staged(reduce, input.get(), output, 1),
                        InvalidArgument, words);
      CHECK_THROWS_WITH(engine.all_gather_staged(gather, input.get(), output, 1), InvalidArgument,
                        words);
    };
    const auto whole = whole_window(engine, gather);
    std::byte* const base = whole->window.base;
    CHECK_EQ(engine.why_no_output(base, whole->window.bytes, 0), std::string());
    CHECK_EQ(engine.why_no_output(input.get(), reduce.input_bytes(), 0), std::string());
    refused(base + whole->window.bytes - 4,
            "out overlaps a buffer of the pool and does not lie in a window");
    refused(base - 4, "out overlaps a buffer of the pool and does not lie in a window");
    refused(engine.acquire(Role::kDispatch, 1, 64)->window.base,
            "out overlaps a window for dispatch, lane 1; it must be");
    refused(engine.acquire(Role::kCombine, 0, 64)->window.base,
            "out overlaps a window for combine, lane 0; it must be");
    CHECK(engine.reduce_scatter_staged(reduce, input.get(), base, 1));
    check_output(base, reduce, 1);
    const size_t own = gather.bytes_of(gather.own_begin());
    CHECK_THROWS_WITH(engine.all_gather(gather, *whole, own + 4, base, 1), InvalidArgument,
                      "out overlaps input, which is not exactly the own rows of it");
    CHECK(engine.all_gather(gather, *whole, own, base, 1));
    refused(base, "gathered already: acquire it again");
    CHECK(engine.rearm(*whole));
    CHECK(engine.all_gather_staged(gather, input.get(), base, 1));
    refused(base, "gathered already: acquire it again");
    CHECK(engine.rearm(*whole));
    CHECK(engine.reduce_scatter_staged(reduce, input.get(), base, 1));
    const auto larger = engine.acquire(Role::kDispatch, 0, size_t{64} << 20);
    CHECK(larger != whole);
    refused(base, "outgrown: acquire it again");
    CHECK(engine.reduce_scatter_staged(reduce, input.get(), larger->window.base, 1));
    check_output(larger->window.base, reduce, 1);
  });
}

int main(int argc, char** argv) {
#if defined(__SANITIZE_THREAD__)
  kernels::set_isa("plain");  // the sanitizer does not see every access of vector instructions
#endif
  return run_all(argc, argv);
}
