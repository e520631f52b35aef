// tsan
// Lost peers, deadlines, poison, close: every rank learns of it soon, with the cause.

#include <thread>

#include "calls.h"
#include "collectives/engine.h"
#include "kernels/cpu/kernels.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

constexpr int64_t kSecond = 1'000'000'000;

template <typename Type>
std::string words_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Type& error) {
    return error.what();
  }
  fail(__FILE__, __LINE__, "nothing was thrown");
}

void expect_words(const std::string& words, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    CHECK_MSG(words.find(part) != std::string::npos, "'" + part + "' is not in: " + words);
  }
}

Plan small_plan(const Engine& engine, int lane = 0) {
  return reduce_plan(Shape::even(engine.world(), 2, 8), engine.rank(), DType::kFloat32,
                     {Role::kCombine, lane});
}

EngineConfig impatient(int64_t deadline_ns) {
  EngineConfig config = test_config();
  config.wait.deadline_ns = deadline_ns;
  return config;
}

// Nothing works any more, and says why at once.
void expect_poisoned(Engine& engine, const std::string& cause) {
  const Plan plan = small_plan(engine, 3);
  const Memory memory(1000);
  const int64_t begin = now_ns();
  CHECK_THROWS_WITH(engine.acquire(Role::kCombine, 3, 8), Poisoned, cause);
  CHECK_THROWS_WITH(engine.reduce_scatter_staged(plan, memory.get(), memory.get(), 1), Poisoned,
                    cause);
  CHECK_THROWS_WITH(engine.reserve({Role::kCombine}, 1, 8, false), Poisoned, cause);
  CHECK_THROWS_WITH(engine.trim(), Poisoned, cause);
  CHECK_THROWS_WITH(engine.check(), Poisoned, cause);
  CHECK(now_ns() - begin < kSecond);
  engine.pool_stats();  // still answers
}

}  // namespace

TEST(a_dead_peer_is_named_with_the_call) {
  ThreadGroup group(3);
  group.run([&](Engine& engine) {
    do_call(engine, small_plan(engine), Path::kPool, 1);
    if (engine.rank() == 1) return group.liveness().kill(1);
    const int64_t begin = now_ns();
    const std::string words =
        words_of<PeerLost>([&] { do_call(engine, small_plan(engine), Path::kPool, 2); });
    CHECK(now_ns() - begin < kSecond);
    expect_words(words, {"(combine, lane 0), rank " + std::to_string(engine.rank()), "epoch ",
                         "rank 1 ended"});
    expect_poisoned(engine, "rank 1 ended");
  });
}

// Rank 0 waits for rank 1 only, which is alive but found out that rank 2 is not.
TEST(the_news_of_a_dead_peer_is_passed_on) {
  ThreadGroup group(3);
  group.run([&](Engine& engine) {
    do_call(engine, small_plan(engine), Path::kPool, 1);
    if (engine.rank() == 2) {
      // Its last sign of life is that it entered rank 0's call.
      FlagLine& line = group.block(2).calls[0][1];
      line.epoch = 1;
      group.meet();
      return;
    }
    group.meet();
    if (engine.rank() == 1) group.liveness().kill(2);
    const int lane = engine.rank() == 0 ? 1 : 0;
    const std::string words =
        words_of<PeerLost>([&] { do_call(engine, small_plan(engine, lane), Path::kStaged, 2); });
    expect_words(words, {"rank 2 ended", "rank " + std::to_string(engine.rank())});
    if (engine.rank() == 0) {
      expect_words(words, {"reduce_scatter (combine, lane 1), rank 0, epoch 1",
                           "rank 1 gave up: reduce_scatter (combine, lane 0), rank 1, epoch 2"});
    }
    expect_poisoned(engine, "rank 2 ended");
  });
}

// The rank that found out ends as well, before its peers have looked: the cause must not be lost.
TEST(the_first_death_is_the_cause_although_more_follow) {
  ThreadGroup group(3);
  group.run([&](Engine& engine) {
    if (engine.rank() == 2) group.liveness().kill(2);
    if (engine.rank() == 1) {
      CHECK_THROWS(do_call(engine, small_plan(engine), Path::kStaged, 1), PeerLost);
      group.liveness().kill(1);
    }
    group.meet();
    if (engine.rank() == 0) {
      const std::string words =
          words_of<PeerLost>([&] { do_call(engine, small_plan(engine, 1), Path::kStaged, 1); });
      expect_words(words, {"rank 1 gave up", "rank 2 ended"});
    }
  });
}

TEST(a_dead_peer_found_while_windows_are_announced) {
  const std::vector<std::pair<std::string, std::function<void(Engine&)>>> cases = {
      {"acquire", [](Engine& engine) { engine.acquire(Role::kCombine, 2, 8); }},
      {"reserve", [](Engine& engine) { engine.reserve({Role::kCombine}, 3, 8, false); }},
      {"reduce_scatter",
       [](Engine& engine) { do_call(engine, small_plan(engine, 2), Path::kStaged, 1); }}};
  for (const auto& [operation, body] : cases) {
    ThreadGroup group(2);
    group.source(0).lost_peer = 1;
    const std::string words = words_of<PeerLost>([&] { body(group.engine(0)); });
    expect_words(words, {operation + " (combine, lane ", "rank 0, after epoch 0: rank 1 ended"});
    expect_poisoned(group.engine(0), "rank 1 ended");
  }
}

TEST(a_dead_peer_found_when_its_window_is_looked_up) {
  ThreadGroup group(2);
  group.run([&](Engine& engine) {
    const Plan plan = small_plan(engine);
    const auto buffer = engine.acquire(Role::kCombine, 0, plan.input_bytes());
    const Memory output(plan.output_bytes());
    if (engine.rank() == 0) group.source(0).lost_peer = 1;
    const auto reduce = [&] { engine.reduce_scatter(plan, *buffer, 0, output.get(), 1); };
    if (engine.rank() == 1) return reduce();
    expect_words(words_of<PeerLost>(reduce),
                 {"reduce_scatter (combine, lane 0), rank 0, after epoch 1: rank 1 ended"});
  });
}

TEST(check_finds_a_dead_peer) {
  ThreadGroup group(2);
  Engine& engine = group.engine(0);
  engine.check();
  group.liveness().kill(1);
  CHECK_THROWS_WITH(engine.check(), PeerLost, "check: rank 1 ended");
  expect_poisoned(engine, "rank 1 ended");
}

TEST(a_dead_peer_in_a_pool_call) {
  ThreadGroup group(2);
  group.run([&](Engine& engine) {
    if (engine.rank() == 1) return group.liveness().kill(1);
    CHECK_THROWS_WITH(engine.reserve({Role::kCombine}, 1, 100, false), PeerLost,
                      "reserve (administration), rank 0, epoch 1: rank 1 ended");
    expect_poisoned(engine, "rank 1 ended");
  });
}

TEST(the_deadline_poisons_and_is_passed_on) {
  for (const int64_t spin_ns : {int64_t{0}, int64_t{50'000}}) {
    EngineConfig config = impatient(kSecond / 5);
    config.wait.spin_ns = spin_ns;
    ThreadGroup group(3, config);
    group.run([&](Engine& engine) {
      do_call(engine, small_plan(engine), Path::kPool, 1);
      if (engine.rank() == 2) {
        group.meet();
        // It comes too late, and hears why nobody waited.
        CHECK_THROWS_WITH(do_call(engine, small_plan(engine, 5), Path::kPool, 2), DeadlineExceeded,
                          "gave up: ");
        return;
      }
      const int64_t begin = now_ns();
      const std::string words = words_of<DeadlineExceeded>(
          [&] { do_call(engine, small_plan(engine), Path::kStaged, 2); });
      CHECK(now_ns() - begin < 3 * kSecond);
      expect_words(words, {"reduce_scatter (combine, lane 0), rank", "epoch 2", "rank 2"});
      expect_poisoned(engine, "epoch 2");
      group.meet();
    });
  }
}

TEST(acquire_waits_for_readers_no_longer_than_the_deadline) {
  ThreadGroup group(2, impatient(kSecond / 5));
  group.run([&](Engine& engine) {
    do_call(engine, small_plan(engine), Path::kPool, 1);
    group.meet();
    // As if rank 1 had stopped while reading.
    if (engine.rank() == 1) group.block(1).calls[0][0].done = 0;
    group.meet();
    if (engine.rank() == 1) return;
    const std::string words =
        words_of<DeadlineExceeded>([&] { engine.acquire(Role::kCombine, 0, 8); });
    expect_words(words, {"acquire (combine, lane 0), rank 0, epoch 1, waiting for its readers",
                         "rank 1 (at epoch 0)"});
    expect_poisoned(engine, "waiting for its readers");
  });
}

TEST(the_first_failure_is_the_cause) {
  ThreadGroup group(2);
  Engine& engine = group.engine(0);
  engine.poison(PoisonNote::Kind::kOther, "the first");
  engine.poison(PoisonNote::Kind::kPeerLost, "the second");
  expect_poisoned(engine, "an earlier call failed: the first");
  const std::string words = words_of<Poisoned>([&] { group.engine(1).check(); });
  expect_words(words, {"check: rank 0 gave up: the first"});
  expect_poisoned(group.engine(1), "the first");
}

TEST(a_long_reason_is_cut) {
  ThreadGroup group(2);
  group.engine(0).poison(PoisonNote::Kind::kOther, std::string(5000, 'x'));
  const std::string words = words_of<Poisoned>([&] { group.engine(0).check(); });
  CHECK(words.size() < 2 * PoisonNote::kTextBytes);
  CHECK_THROWS_WITH(group.engine(1).check(), Poisoned, "gave up: xxx");
}

// Several lanes fail at the same time; whoever asks then reads a whole note.
TEST(lanes_that_fail_together) {
  for (int round = 0; round < 3; ++round) {
    ThreadGroup group(2, impatient(kSecond / 10));
    Engine& engine = group.engine(0);
    std::atomic<bool> stop = false;
    CHECK(run_threads(6, [&](int lane) {
      if (lane == 5) {
        while (!stop) {
          try {
            engine.check();
          } catch (const Poisoned& error) {
            expect_words(error.what(), {"failed: reduce_scatter (combine, lane ", "rank 1"});
          }
        }
        return;
      }
      CHECK_THROWS(do_call(engine, small_plan(engine, lane), Path::kStaged, 1), Error);
      CHECK_THROWS(engine.check(), Poisoned);
      stop = true;
    }));
  }
}

TEST(close_ends_everything_but_not_under_a_call) {
  ThreadGroup group(2);
  std::atomic<bool> refused = false;
  group.run([&](Engine& engine) {
    const Plan plan = small_plan(engine);
    if (engine.rank() == 0) {
      std::thread closer([&] {
        while (group.block(0).calls[0][0].epoch.load() == 0) std::this_thread::yield();
        try {
          engine.close();
        } catch (const InvalidArgument& error) {
          refused =
              std::string(error.what()) == "close, rank 0: a call is running on combine, lane 0";
        }
      });
      do_call(engine, plan, Path::kStaged, 1);
      closer.join();
    } else {
      while (!refused) std::this_thread::yield();  // rank 0 is in its call as long as this
      do_call(engine, plan, Path::kStaged, 1);
    }
    // The refused close has left no trace.
    for (int call = 0; call < 5; ++call) do_call(engine, plan, Path::kPool, call);
    auto view = engine.acquire(Role::kCombine, 0, 8);
    engine.close();
    engine.close();
    const Memory memory(1000);
    CHECK_THROWS_WITH(engine.acquire(Role::kCombine, 0, 8), Closed, "the group is closed");
    CHECK_THROWS_WITH(engine.rearm(*view), Closed, "closed");
    CHECK_THROWS_WITH(engine.reduce_scatter(plan, *view, 0, memory.get(), 1), Closed, "closed");
    CHECK_THROWS_WITH(engine.agree(Role::kCombine, 0, "x"), Closed, "closed");
    CHECK_THROWS_WITH(engine.trim(), Closed, "closed");
    CHECK_THROWS_WITH(engine.check(), Closed, "closed");
    view->window.base[0] = std::byte{1};  // the view still has its memory
  });
}

// Closing against calls on other lanes: each either runs, or is refused; nothing is poisoned.
TEST(close_that_is_refused_disturbs_no_other_lane) {
  ThreadGroup group(1);
  Engine& engine = group.engine(0);
  CHECK(run_threads(3, [&](int thread) {
    for (int call = 0; thread < 2 && call < 400; ++call) {
      try {
        const auto buffer = engine.acquire(Role::kCombine, thread, 8 + static_cast<size_t>(call));
        const Plan plan = small_plan(engine, thread);
        do_call(engine, plan, Path::kStaged, call);
      } catch (const InvalidArgument&) {
        // close looked at this lane just then
      } catch (const Closed&) {
        return;  // the other lanes happened to be idle
      }
    }
    while (thread == 2) {
      try {
        engine.close();
        return;
      } catch (const InvalidArgument&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }));
  CHECK_THROWS(engine.check(), Closed);
  CHECK(group.block(0).poison.kind.load() == PoisonNote::Kind::kNone);
}

int main(int argc, char** argv) {
#if defined(__SANITIZE_THREAD__)
  kernels::set_isa("plain");  // the sanitizer does not see every access of vector instructions
#endif
  return run_all(argc, argv);
}
