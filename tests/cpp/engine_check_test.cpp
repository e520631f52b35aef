// tsan
// Check mode: ranks that are about to wait for each other in different calls are told so, all.

#include <atomic>
#include <thread>

#include "calls.h"
#include "collectives/engine.h"
#include "kernels/cpu/kernels.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

constexpr int64_t kSecond = 1'000'000'000;

EngineConfig checking(int64_t stall_ns) {
  EngineConfig config = test_config();
  config.check = true;
  config.stall_ns = stall_ns;
  return config;
}

void checked_call(Engine& engine, Where where, int call) {
  const Plan plan =
      reduce_plan(Shape::even(engine.world(), 2, 8), engine.rank(), DType::kFloat32, where);
  engine.check_call(where.lane, plan.text);
  do_call(engine, plan, Path::kPool, call);
}

// What `body` throws is a disagreement, and has poisoned the group.
void expect_crossed(Engine& engine, const std::function<void()>& body) {
  const int64_t begin = now_ns();
  try {
    body();
    fail(__FILE__, __LINE__, "nothing was thrown");
  } catch (const CrossedCalls& error) {
    const std::string words = error.what();
    CHECK_MSG(words.find("ranks wait for each other in different calls") != std::string::npos,
              words);
    CHECK_MSG(
        words.find(", rank " + std::to_string(engine.rank()) + ", epoch") != std::string::npos,
        words);
  }
  CHECK(now_ns() - begin < 20 * kSecond);
  CHECK_THROWS_WITH(engine.check(), Poisoned, "different calls");
}

}  // namespace

TEST(equal_calls_pass) {
  ThreadGroup group(4, checking(kSecond / 10));
  group.run([](Engine& engine) {
    for (int call = 0; call < 100; ++call) {
      checked_call(engine, {static_cast<Role>(call % 2), call % 3}, call);
    }
  });
}

TEST(crossed_roles_in_a_lane_are_a_mismatch_on_all) {
  ThreadGroup group(3, checking(kSecond / 10));
  group.run([](Engine& engine) {
    const Role role = engine.rank() == 2 ? Role::kDispatch : Role::kCombine;
    CHECK_THROWS_WITH(checked_call(engine, {role, 0}, 1), Mismatch, "dispatch");
    for (int call = 0; call < 5; ++call) checked_call(engine, {Role::kCombine, 0}, call);
  });
}

TEST(crossed_lanes_raise_on_all) {
  for (const int world : {2, 4}) {
    ThreadGroup group(world, checking(kSecond / 10));
    group.run([&](Engine& engine) {
      checked_call(engine, {}, 1);
      expect_crossed(engine, [&] {
        checked_call(engine, {Role::kCombine, engine.rank() == world - 1 ? 1 : 0}, 2);
      });
    });
  }
}

TEST(a_call_crossed_with_a_pool_call_raises_on_all) {
  ThreadGroup group(2, checking(kSecond / 10));
  group.run([](Engine& engine) {
    checked_call(engine, {}, 1);
    expect_crossed(engine, [&] {
      if (engine.rank() == 0) {
        checked_call(engine, {}, 2);
      } else {
        engine.reserve({Role::kCombine}, 1, 1000, false);
      }
    });
  });
}

// One rank is merely late: that is no disagreement, however long it takes.
TEST(a_late_rank_is_not_crossed) {
  ThreadGroup group(3, checking(kSecond / 20));
  group.run([](Engine& engine) {
    checked_call(engine, {Role::kCombine, 1}, 1);
    if (engine.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    checked_call(engine, {}, 2);
  });
}

// A correct program in which each rank waits on one lane while it still computes for the other: to
// the ranks that wait it looks like crossed calls, so the limit is a guess about how long a lane
// computes. Below that, a group is given up that could have gone on; above it, it goes on.
TEST(lanes_that_compute_for_longer_than_the_limit) {
  constexpr int64_t kCompute = kSecond / 4;
  CHECK_EQ(EngineConfig{}.stall_ns, 30 * kSecond);
  for (const int64_t stall_ns : {kCompute / 5, 40 * kCompute, int64_t{0}}) {
    const bool long_enough = stall_ns == 0 || stall_ns > kCompute;
    ThreadGroup group(2, checking(stall_ns));
    std::atomic<int> crossed = 0;
    group.run([&](Engine& engine) {
      CHECK(run_threads(2, [&](int lane) {
        if (lane != engine.rank()) {
          std::this_thread::sleep_for(std::chrono::nanoseconds(kCompute));
        }
        if (long_enough) return checked_call(engine, {Role::kCombine, lane}, 1);
        try {
          checked_call(engine, {Role::kCombine, lane}, 1);
        } catch (const CrossedCalls& error) {
          ++crossed;
        } catch (const Poisoned& error) {  // the other lane was first
          CHECK(std::string(error.what()).find("in different calls") != std::string::npos);
        }
      }));
    });
    CHECK(long_enough ? crossed == 0 : crossed >= 2);
  }
}

// Two lanes on two threads may come in different orders on the ranks.
TEST(lanes_in_different_orders_are_not_crossed) {
  ThreadGroup group(2, checking(5 * kSecond));
  group.run([](Engine& engine) {
    CHECK(run_threads(2, [&](int lane) {
      for (int call = 0; call < 40; ++call) {
        if ((lane + engine.rank() + call) % 4 == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
        checked_call(engine, {Role::kCombine, lane}, call);
      }
    }));
  });
}

int main(int argc, char** argv) {
#if defined(__SANITIZE_THREAD__)
  kernels::set_isa("plain");  // the sanitizer does not see every access of vector instructions
#endif
  return run_all(argc, argv);
}
