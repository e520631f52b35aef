// tsan
// Collective pool calls: reserve, trim, release_graphs, and what happens where memory is short.

#include <atomic>
#include <thread>
#include <vector>

#include "calls.h"
#include "collectives/engine.h"
#include "kernels/cpu/kernels.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

constexpr size_t kScarce = 4096;  // no rank that is short of memory gets a larger window

void go_on(Engine& engine, int lane = 0) {
  for (int call = 0; call < 4; ++call) {
    do_call(engine,
            reduce_plan(Shape::even(engine.world(), 2, 8), engine.rank(), DType::kFloat32,
                        {Role::kCombine, lane}),
            call % 2 == 0 ? Path::kPool : Path::kStaged, call);
  }
}

}  // namespace

TEST(reserved_buffers_are_there_on_all_ranks) {
  ThreadGroup group(3);
  group.run([](Engine& engine) {
    CHECK_EQ(engine.reserve({Role::kCombine}, 3, 1000, false), "");
    CHECK_EQ(engine.reserve({Role::kDispatch}, 1, 500, true), "");
    CHECK_EQ(engine.reserve({Role::kDispatch}, 1, 0, false), "");
    const PoolStats before = engine.pool_stats();
    CHECK_EQ(before.buffers, size_t{4});
    CHECK_EQ(before.live_bytes, size_t{3 * 1024 + 512});
    CHECK_EQ(before.pinned_bytes, size_t{512});
    for (int lane = 0; lane < 3; ++lane) {
      CHECK_EQ(engine.acquire(Role::kCombine, lane, 1000)->window.bytes, size_t{1024});
      go_on(engine, lane);
    }
    CHECK_EQ(engine.pool_stats().growths, size_t{0});
  });
  // Every rank has taken in every peer's windows: no call will have to.
  for (int rank = 0; rank < 3; ++rank) CHECK(group.source(rank).mapped_bytes() >= 2 * 3584);
}

TEST(a_reserve_that_fails_on_one_rank_fails_on_all) {
  ThreadGroup group(3);
  group.source(1).limit_bytes = kScarce;
  group.run([](Engine& engine) {
    CHECK_EQ(engine.reserve({Role::kCombine}, 2, 1000, false), "");
    const auto before = engine.acquire(Role::kCombine, 0, 1000);
    const size_t held = engine.pool_stats().live_bytes;
    for (int round = 0; round < 2; ++round) {
      const std::string reason = engine.reserve({Role::kCombine}, 4, 10'000, true);
      CHECK_MSG(reason.find("rank 1: reserve combine lanes=4 bytes=10000") != std::string::npos,
                reason);
      CHECK_MSG(reason.find("rank 1 has no 10240 bytes") != std::string::npos, reason);
    }
    // Nobody keeps anything, and the buffer that was there is there again.
    CHECK_EQ(engine.pool_stats().live_bytes, held);
    CHECK_EQ(engine.pool_stats().pinned_bytes, size_t{0});
    CHECK(engine.acquire(Role::kCombine, 0, 1000) == before);
    CHECK(!before->retired);
    // The limit is the same everywhere, also where there would be memory.
    CHECK(engine.acquire(Role::kCombine, 0, 10'000) == nullptr);
    CHECK(engine.refusal().find("rank 1") != std::string::npos);
    const Plan plan = reduce_plan(Shape::even(3, 10, 100), engine.rank());
    const Memory input(plan.input_bytes());
    const Memory output(plan.output_bytes());
    CHECK(!engine.reduce_scatter_staged(plan, input.get(), output.get(), 1));
    go_on(engine);
  });
}

// Roles are agreed on together: that one of them can be had does not matter.
TEST(a_reserve_of_several_roles_is_all_or_nothing) {
  EngineConfig config = test_config();
  config.pool.granularity = 8;
  ThreadGroup group(3, config);
  group.run([&](Engine& engine) {
    CHECK_EQ(engine.reserve({Role::kDispatch}, 1, 200, false), "");
    const auto before = engine.acquire(Role::kDispatch, 0, 200);
    // Rank 1 can have the buffers for combine, but not what dispatch grows to: 400 bytes.
    if (engine.rank() == 1) group.source(1).limit_bytes = 350;
    const std::vector<Role> both = {Role::kCombine, Role::kDispatch};
    const std::string reason = engine.reserve(both, 2, 300, true);
    CHECK_MSG(reason.find("rank 1: reserve combine,dispatch lanes=2 bytes=300 graph: ") == 0,
              reason);
    CHECK_EQ(engine.pool_stats().live_bytes, size_t{200});
    CHECK_EQ(engine.pool_stats().buffers, size_t{1});
    CHECK_EQ(engine.pool_stats().pinned_bytes, size_t{0});
    CHECK(engine.acquire(Role::kDispatch, 0, 200) == before);
    CHECK(engine.acquire(Role::kCombine, 0, 300) == nullptr);

    // Equal requests, whatever the order and however often a role is named.
    const std::vector<Role> other = {Role::kDispatch, Role::kCombine, Role::kDispatch};
    CHECK_EQ(engine.reserve(engine.rank() == 0 ? both : other, 2, 250, true), "");
    CHECK(engine.pool_stats().pinned_bytes >= size_t{4} * 250);
    CHECK_THROWS_WITH(
        engine.reserve(engine.rank() == 0 ? both : std::vector{Role::kCombine}, 2, 250, true),
        Mismatch, "reserve combine,dispatch");
    go_on(engine);
  });
}

TEST(reserve_refuses_lanes_that_are_in_use) {
  ThreadGroup group(2);
  std::atomic<bool> refused = false;
  group.run([&](Engine& engine) {
    const Plan plan =
        reduce_plan(Shape::even(2, 2, 8), engine.rank(), DType::kFloat32, {Role::kDispatch, 1});
    if (engine.rank() == 0) {
      std::thread second([&] {
        while (group.block(0).calls[1][1].epoch.load() == 0) std::this_thread::yield();
        CHECK_THROWS_WITH(engine.reserve({Role::kCombine, Role::kDispatch}, 2, 1000, false),
                          InvalidArgument,
                          "reserve, rank 0: another thread is in a call on dispatch, lane 1");
        refused = true;
      });
      do_call(engine, plan, Path::kPool, 1);
      second.join();
    } else {
      while (!refused) std::this_thread::yield();  // rank 0 is in its call as long as this
      do_call(engine, plan, Path::kPool, 1);
    }
    // The refusal has left nothing taken.
    CHECK_EQ(engine.reserve({Role::kCombine, Role::kDispatch}, 2, 1000, false), "");
    go_on(engine);
  });
}

TEST(not_even_one_byte) {
  EngineConfig config = test_config();
  config.pool.granularity = 2 * kScarce;
  ThreadGroup group(2, config);
  group.source(0).limit_bytes = kScarce;
  group.run([](Engine& engine) {
    for (const size_t bytes : {1, 2, 1}) {
      const std::string reason = engine.reserve({Role::kCombine}, 1, bytes, false);
      CHECK(reason.find("rank 0") != std::string::npos);
      CHECK(engine.acquire(Role::kCombine, 0, 1) == nullptr);
      CHECK(engine.acquire(Role::kCombine, 3, 100'000) == nullptr);
    }
  });
}

// The calls themselves: one rank cannot stage or acquire, and all take their fallback together.
TEST(one_rank_without_memory_makes_all_fall_back) {
  for (const Plan::Kind kind : {Plan::Kind::kReduceScatter, Plan::Kind::kAllGather}) {
    ThreadGroup group(4);
    group.source(2).limit_bytes = kScarce;
    group.run([&](Engine& engine) {
      const Plan large = make_plan(kind, Shape::even(4, 11, 100), engine.rank(), DType::kFloat32);
      const Memory input(large.input_bytes());
      const Memory output(large.output_bytes());
      for (int call = 0; call < 6; ++call) {
        const auto buffer = engine.acquire(Role::kCombine, 0, large.input_bytes());
        CHECK((buffer == nullptr) == (engine.rank() == 2));
        if (buffer == nullptr) CHECK(engine.refusal().find("rank 2 has no") != std::string::npos);
        if (buffer != nullptr && call % 2 == 0) {
          CHECK(!run_from_pool(engine, large, *buffer, output.get()));
        } else {
          CHECK(!run_staged(engine, large, input.get(), output.get()));
        }
        const auto* const bytes = static_cast<const unsigned char*>(output.get());
        for (size_t i = 0; i < large.output_bytes(); ++i) CHECK_EQ(bytes[i], 0);
        go_on(engine);
      }
    });
    CHECK_EQ(group.engine(0).counts().pull.load(), 12u);
    CHECK_EQ(group.engine(0).counts().staged.load(), 12u);
  }
}

// acquire knows the answer by itself; reserve asks, in case the others gave other arguments.
TEST(a_cap_refuses_the_same_on_all_ranks) {
  EngineConfig config = test_config();
  config.pool.max_buffer_bytes = 1000;
  ThreadGroup group(2, config);
  CHECK(group.engine(0).acquire(Role::kCombine, 0, 1001) == nullptr);
  CHECK(group.engine(0).refusal().find("1001 bytes exceed") != std::string::npos);
  group.run([](Engine& engine) {
    CHECK(engine.reserve({Role::kCombine}, 1, 1001, false).find("max_buffer_bytes=1000") !=
          std::string::npos);
    CHECK_THROWS_WITH(engine.reserve({Role::kCombine}, 1, engine.rank() == 0 ? 1001 : 900, false),
                      Mismatch, "bytes=900");
    CHECK(engine.reserve({Role::kCombine}, 1, 1000, false).empty());
    go_on(engine);
  });
}

TEST(different_reserves_are_a_mismatch_and_leave_nothing) {
  ThreadGroup group(2);
  group.run([](Engine& engine) {
    go_on(engine);
    const size_t before = engine.pool_stats().live_bytes;
    CHECK_THROWS_WITH(engine.reserve({Role::kCombine}, 2, engine.rank() == 0 ? 5000 : 6000, false),
                      Mismatch, "bytes=6000");
    CHECK_EQ(engine.pool_stats().live_bytes, before);
    if (engine.rank() == 0) {
      CHECK_THROWS_WITH(engine.reserve({Role::kDispatch}, 1, 5000, false), Mismatch, "trim");
    } else {
      CHECK_THROWS_WITH(engine.trim(), Mismatch, "reserve dispatch");
    }
    CHECK_EQ(engine.pool_stats().live_bytes, before);
    go_on(engine);
    engine.trim();
    CHECK_EQ(engine.pool_stats().retired_bytes, size_t{0});
  });
}

// When trim returns, the memory is free: whatever a slow peer was reading when it began.
TEST(trim_waits_for_slow_readers) {
  ThreadGroup group(2);
  group.run([&](Engine& engine) {
    for (int round = 0; round < 5; ++round) {
      const Plan plan = reduce_plan(Shape::even(2, 2 << round, 16), engine.rank());
      const Memory output(plan.output_bytes());
      auto buffer = engine.acquire(Role::kCombine, 0, plan.input_bytes());
      fill(buffer->window.base, plan, round);
      engine.acquire(Role::kCombine, 0, 2 * buffer->window.bytes);  // outgrows it
      if (engine.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      CHECK(engine.reduce_scatter(plan, *buffer, 0, output.get(), 1));
      check_output(output.get(), plan, round);
      buffer.reset();
      // A reader that is still at it, as far as its peer can see.
      if (engine.rank() == 1) {
        FlagLine& line = group.block(1).calls[0][0];
        const uint32_t done = line.done.load();
        line.done = done - 1;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        line.done = done;
      }
      engine.trim();
      CHECK_EQ(engine.pool_stats().retired_bytes, size_t{0});
    }
  });
  for (int rank = 0; rank < 2; ++rank) {
    CHECK_EQ(group.source(rank).mapped_bytes(), group.engine(1 - rank).pool_stats().live_bytes);
  }
}

TEST(graphs_keep_their_buffers_until_they_are_released) {
  ThreadGroup group(3);
  group.run([](Engine& engine) {
    CHECK_EQ(engine.reserve({Role::kCombine}, 1, 200, true), "");
    auto retained = engine.acquire(Role::kCombine, 1, 200);
    engine.retain(*retained);
    auto pinned = engine.acquire(Role::kCombine, 0, 200);
    std::byte* const base = pinned->window.base;
    pinned.reset();
    retained.reset();
    for (int lane = 0; lane < 2; ++lane) engine.acquire(Role::kCombine, lane, 2000);
    engine.trim();
    CHECK_EQ(engine.pool_stats().retired_bytes, size_t{512});
    CHECK_EQ(engine.pool_stats().pinned_bytes, size_t{512});
    size_t offset = 0;
    CHECK(engine.find(base, &offset) != nullptr);  // a graph still writes there
    engine.release_graphs();
    CHECK_EQ(engine.pool_stats().retired_bytes, size_t{0});
    CHECK(engine.find(base, &offset) == nullptr);
    go_on(engine);
  });
}

// Only what all ranks say is gone is gone: a graph of this rank may still write there.
TEST(graphs_stay_unless_all_ranks_release_them) {
  ThreadGroup group(2);
  group.run([&](Engine& engine) {
    CHECK_EQ(engine.reserve({Role::kCombine}, 1, 200, true), "");
    if (engine.rank() == 0) {
      CHECK_THROWS_WITH(engine.release_graphs(), Mismatch, "Rank 0: release_graphs. Rank 1: trim");
    } else {
      CHECK_THROWS_WITH(engine.trim(), Mismatch, "release_graphs");
    }
    CHECK_EQ(engine.pool_stats().pinned_bytes, size_t{256});
    group.meet();
    if (engine.rank() == 1) return group.liveness().kill(1);
    CHECK_THROWS_WITH(engine.release_graphs(), PeerLost, "release_graphs (administration)");
    CHECK_EQ(engine.pool_stats().pinned_bytes, size_t{256});
  });
}

TEST(a_world_of_one_needs_nobody) {
  ThreadGroup group(1);
  group.run([](Engine& engine) {
    CHECK_EQ(engine.reserve({Role::kCombine}, 2, 1000, true), "");
    go_on(engine);
    CHECK(engine.acquire(Role::kCombine, 0, 0) != nullptr);
    engine.acquire(Role::kCombine, 0, 5000);
    engine.release_graphs();
    CHECK_EQ(engine.pool_stats().retired_bytes, size_t{0});
    engine.agree(Role::kCombine, 0, "fallback");
    engine.check_call(0, "call");
    engine.check();
    engine.close();
  });
}

int main(int argc, char** argv) {
#if defined(__SANITIZE_THREAD__)
  kernels::set_isa("plain");  // the sanitizer does not see every access of vector instructions
#endif
  return run_all(argc, argv);
}
