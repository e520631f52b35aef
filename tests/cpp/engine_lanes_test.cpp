// tsan
// Lanes are independent: on threads of their own, in different orders, growing at different times.

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "calls.h"
#include "collectives/engine.h"
#include "kernels/cpu/kernels.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

// Drawn alike on all ranks.
struct Draw {
  Plan::Kind kind;
  Where where;
  DType dtype;
  Shape shape;
};

Draw draw(std::mt19937& random, int world, int lanes) {
  Draw drawn;
  drawn.kind = random() % 3 == 0 ? Plan::Kind::kAllGather : Plan::Kind::kReduceScatter;
  drawn.where = {static_cast<Role>(random() % 2), static_cast<int>(random() % lanes)};
  drawn.dtype = random() % 2 == 0 ? DType::kBFloat16 : DType::kFloat32;
  std::vector<int64_t> counts;
  for (int rank = 0; rank < world; ++rank) {
    counts.push_back(static_cast<int64_t>(random() % 3 == 0 ? 0 : random() % 7));
  }
  const int64_t hidden = static_cast<int64_t>(1 + random() % 48);
  drawn.shape =
      random() % 2 == 0 ? Shape::packed(counts, hidden) : Shape::padded(counts, 7, hidden);
  return drawn;
}

}  // namespace

// The same calls everywhere, each lane on a thread, with pauses that differ by rank.
TEST(lanes_on_threads_interleave_differently_on_the_ranks) {
  for (const int world : {2, 3}) {
    ThreadGroup group(world);
    group.run([&](Engine& engine) {
      CHECK(run_threads(2, [&](int lane) {
        std::mt19937 pauses(static_cast<uint32_t>(engine.rank() * 2 + lane));
        for (int call = 0; call < 250; ++call) {
          if (pauses() % 8 == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(pauses() % 500));
          }
          const Plan plan = reduce_plan(Shape::even(world, 1 + call / 10, 16), engine.rank(),
                                        DType::kBFloat16, {Role::kCombine, lane});
          do_call(engine, plan, pauses() % 3 == 0 ? Path::kStaged : Path::kPool, call);
        }
      }));
    });
  }
}

// A lane that waits for ever does not hold up another one, not even when that one grows.
TEST(a_waiting_lane_does_not_block_another) {
  ThreadGroup group(2);
  std::atomic<bool> others_are_done = false;
  group.run([&](Engine& engine) {
    CHECK(run_threads(2, [&](int lane) {
      if (lane == 1 && engine.rank() == 1) {
        while (!others_are_done) std::this_thread::yield();
      }
      const int calls = lane == 0 ? 50 : 1;
      for (int call = 0; call < calls; ++call) {
        const Plan plan = reduce_plan(Shape::even(2, 1 + call * 2, 16), engine.rank(),
                                      DType::kFloat32, {Role::kDispatch, lane});
        do_call(engine, plan, Path::kPool, call);
      }
      if (lane == 0) others_are_done = true;
    }));
  });
}

// Any operations, in any order of lanes, with buffers that grow and views that outlive them.
TEST(random_calls_on_random_lanes) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    constexpr int kWorld = 4;
    ThreadGroup group(kWorld);
    group.run([&](Engine& engine) {
      std::mt19937 shared(seed);
      std::mt19937 own(seed * 100 + static_cast<uint32_t>(engine.rank()));
      // Buffers that this rank acquired and wrote some calls ago, with the call they are for.
      struct Written {
        std::shared_ptr<Buffer> buffer;
        Plan plan;
        int call;
      };
      std::map<std::pair<int, int>, Written> written;
      for (int call = 0; call < 220; ++call) {
        const Draw drawn = draw(shared, kWorld, 3);
        const Plan plan =
            make_plan(drawn.kind, drawn.shape, engine.rank(), drawn.dtype, drawn.where);
        const auto slot = std::pair(static_cast<int>(plan.role), plan.lane);
        switch (shared() % 12) {
          case 0:
            engine.trim();
            break;
          case 1:
            CHECK_EQ(engine.reserve({plan.role}, 1 + plan.lane, 1 + shared() % 3000, false), "");
            break;
          case 2: {
            // Written now, reduced when this lane comes up the next time, perhaps outgrown by then.
            if (written.contains(slot)) break;
            auto buffer = engine.acquire(plan.role, plan.lane, plan.input_bytes());
            fill(buffer->window.base, plan, call);
            written.emplace(slot, Written{std::move(buffer), plan, call});
            break;
          }
          default: {
            if (const auto found = written.find(slot); found != written.end()) {
              const Written& old = found->second;
              if (shared() % 2 == 0) {
                engine.acquire(plan.role, plan.lane, 1 + old.buffer->window.bytes);
              }
              const Memory output(old.plan.output_bytes());
              CHECK(run_from_pool(engine, old.plan, *old.buffer, output.get()));
              check_output(output.get(), old.plan, old.call);
              written.erase(found);
            }
            do_call(engine, plan, own() % 2 == 0 ? Path::kPool : Path::kStaged, call);
          }
        }
      }
      written.clear();
      engine.trim();
      CHECK_EQ(engine.pool_stats().retired_bytes, size_t{0});
      engine.check();
    });
  }
}

// The same from several threads per rank, a lane each, so that growth in one lane trims the pool
// while the others use it.
TEST(random_calls_from_several_threads) {
  constexpr int kWorld = 2;
  constexpr int kLanes = 3;
  ThreadGroup group(kWorld);
  group.run([&](Engine& engine) {
    CHECK(run_threads(kLanes + 1, [&](int lane) {
      std::mt19937 shared(static_cast<uint32_t>(lane));
      std::mt19937 own(static_cast<uint32_t>(lane * 10 + engine.rank()));
      for (int call = 0; call < 200; ++call) {
        if (lane == kLanes) {  // an onlooker
          engine.pool_stats();
          engine.check();
          std::byte nothing{};
          CHECK(!engine.overlaps(&nothing, 1));
          continue;
        }
        Draw drawn = draw(shared, kWorld, kLanes);
        drawn.where.lane = lane;
        const Plan plan =
            make_plan(drawn.kind, drawn.shape, engine.rank(), drawn.dtype, drawn.where);
        if (own() % 40 == 0) {
          engine.retain(*engine.acquire(plan.role, lane, plan.input_bytes()));
        }
        do_call(engine, plan, own() % 2 == 0 ? Path::kPool : Path::kStaged, call);
      }
    }));
    engine.release_graphs();
    CHECK_EQ(engine.pool_stats().retired_bytes, size_t{0});
  });
}

int main(int argc, char** argv) {
#if defined(__SANITIZE_THREAD__)
  kernels::set_isa("plain");  // the sanitizer does not see every access of vector instructions
#endif
  return run_all(argc, argv);
}
