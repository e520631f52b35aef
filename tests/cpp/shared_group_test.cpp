// Whole groups of processes: calls end to end, and peers that are killed, stopped or leave.

#include "collectives/shared_group.h"

#include <random>

#include "calls.h"
#include "rank_processes.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

EngineConfig process_config() {
  EngineConfig config;
  config.wait.deadline_ns = kPatience;
  config.pool.granularity = 4096;
  return config;
}

// A rank of a group; made by every process of a test.
class Member {
 public:
  explicit Member(const Rank& self, const EngineConfig& config = process_config())
      : listener_(self.listen()),
        group_(self.rank(), self.world(), self.addresses(), test_token(), std::move(listener_),
               config) {}
  Engine& engine() { return group_.engine(); }
  size_t peer_bytes() const { return group_.peer_bytes(); }

 private:
  Listener listener_;
  SharedGroup group_;
};

Plan plan_of(const Engine& engine, int64_t rows, int64_t hidden, int lane = 0) {
  return reduce_plan(Shape::even(engine.world(), rows, hidden), engine.rank(), DType::kBFloat16,
                     {Role::kCombine, lane});
}

// Calls until one fails, which must be for want of `rank`; gives the words.
std::string call_until_lost(const std::function<void(int call)>& one_call) {
  try {
    for (int call = 0;; ++call) one_call(call);
  } catch (const PeerLost& error) {
    return error.what();
  }
}

void expect_part(const std::string& words, const std::string& part) {
  CHECK_MSG(words.find(part) != std::string::npos, "'" + part + "' is not in: " + words);
}

// One rank of `world` is killed at a random moment of `one_call`, which all repeat. The others
// must notice within a second, name it, and be poisoned.
void kill_during(int world, uint32_t seed, const EngineConfig& config,
                 const std::function<void(Engine&, int call)>& one_call,
                 const std::string& expected) {
  constexpr int kVictim = 1;
  const SharedMeeting meeting;
  const std::vector<pid_t> pids = start_ranks(world, *meeting, [&](Rank& self) {
    Member member(self, config);
    Engine& engine = member.engine();
    one_call(engine, 0);
    self.barrier(0);
    const std::string words = call_until_lost([&](int call) { one_call(engine, call + 1); });
    const int64_t noticed = now_ns();
    CHECK_MSG(noticed - self.note(0).load() < kSecond,
              std::to_string((noticed - self.note(0).load()) / kMillisecond) + " ms");
    CHECK(self.note(0).load() != 0);
    expect_part(words, "rank 1 (pid ");
    expect_part(words, " ended");
    expect_part(words, expected);
    CHECK_THROWS_WITH(engine.acquire(Role::kCombine, 0, 8), Poisoned, "rank 1 (pid ");
    self.note(1).fetch_add(1);
    // Nobody leaves before all have noticed by themselves.
    wait_until([&] { return self.note(1).load() == self.world() - 1; });
  });
  wait_until([&] { return meeting->arrived[0].load() == world; });
  std::mt19937 random(seed);
  sleep_ms(random() % 60);
  meeting->notes[0].store(now_ns());
  kill(pids[kVictim], SIGKILL);
  for (int rank = 0; rank < world; ++rank) {
    const int status = finish_process(pids[static_cast<size_t>(rank)]);
    if (rank == kVictim) {
      CHECK(WIFSIGNALED(status));
    } else {
      CHECK_EQ(status, 0);
    }
  }
}

}  // namespace

TEST(calls_from_end_to_end) {
  for (const int world : {1, 2, 3, 4, 8}) {
    run_ranks(world, [](Rank& self) {
      Member member(self);
      Engine& engine = member.engine();
      CHECK_EQ(engine.reserve({Role::kCombine}, 2, 10'000, false), "");
      const int rounds = self.world() == 8 ? 10 : 40;
      for (int call = 0; call < rounds; ++call) {
        std::vector<int64_t> counts;
        for (int rank = 0; rank < self.world(); ++rank) counts.push_back((rank + call) % 5);
        const Shape shape = Shape::packed(counts, 1 + 17 * call);
        const Path path = (self.rank() + call) % 3 == 0 ? Path::kStaged : Path::kPool;
        do_call(engine,
                reduce_plan(shape, self.rank(), DType::kBFloat16, {Role::kCombine, call % 3}), path,
                call);
        do_call(engine,
                gather_plan(shape, self.rank(), DType::kFloat32, {Role::kDispatch, call % 2}), path,
                call);
      }
      engine.trim();
      CHECK_EQ(engine.pool_stats().retired_bytes, size_t{0});
      engine.check();
      self.barrier(0);
      engine.close();
    });
  }
}

TEST(a_view_from_before_growth_is_reduced_after) {
  run_ranks(2, [](Rank& self) {
    Member member(self);
    Engine& engine = member.engine();
    const Plan plan = plan_of(engine, 4, 64);
    const Memory output(plan.output_bytes());
    auto old = engine.acquire(Role::kCombine, 0, plan.input_bytes());
    fill(old->window.base, plan, 1);
    for (int call = 2; call < 6; ++call)
      do_call(engine, plan_of(engine, 100 * call, 64), Path::kPool, call);
    engine.trim();
    CHECK(engine.reduce_scatter(plan, *old, 0, output.get(), 1));
    check_output(output.get(), plan, 1);
    old.reset();
    engine.trim();
    // The peer's windows are mapped as long as the peer has them, and no longer.
    CHECK_EQ(engine.pool_stats().retired_bytes, size_t{0});
    CHECK_EQ(member.peer_bytes(), engine.pool_stats().live_bytes);
    self.barrier(0);
  });
}

TEST(a_rank_killed_during_calls) {
  for (uint32_t seed = 0; seed < 4; ++seed) {
    kill_during(
        4, seed, process_config(),
        [](Engine& engine, int call) {
          do_call(engine, plan_of(engine, 16, 128), call % 2 == 0 ? Path::kPool : Path::kStaged,
                  call);
        },
        "(combine, lane 0), rank ");
  }
}

TEST(a_rank_killed_while_all_sleep_or_all_spin) {
  for (const int64_t spin_ns : {int64_t{0}, 3600 * kSecond}) {
    EngineConfig config = process_config();
    config.wait.spin_ns = spin_ns;
    kill_during(
        2, 7, config,
        [](Engine& engine, int call) {
          if (engine.rank() == 1) sleep_ms(1);
          do_call(engine, plan_of(engine, 1, 8), Path::kStaged, call);
        },
        "(combine, lane 0), rank 0, epoch ");
  }
}

TEST(a_rank_killed_during_pool_calls) {
  kill_during(
      3, 3, process_config(),
      [](Engine& engine, int call) {
        engine.acquire(Role::kCombine, call % kMaxLanes, static_cast<size_t>(call + 1) * 5000);
        engine.trim();
      },
      "), rank ");
}

TEST(a_stopped_rank_runs_into_the_deadline_and_hears_of_it) {
  EngineConfig config = process_config();
  config.wait.deadline_ns = kSecond;
  const SharedMeeting meeting;
  const std::vector<pid_t> pids = start_ranks(3, *meeting, [&](Rank& self) {
    Member member(self, config);
    Engine& engine = member.engine();
    do_call(engine, plan_of(engine, 2, 8), Path::kPool, 0);
    self.barrier(0);
    if (self.rank() == 2) {
      wait_until([&] { return self.note(1).load() == 2; });
      CHECK_THROWS_WITH(do_call(engine, plan_of(engine, 2, 8, 1), Path::kPool, 1), DeadlineExceeded,
                        "gave up: reduce_scatter (combine, lane 0), rank ");
      self.note(2).store(1);
      return;
    }
    const int64_t begin = now_ns();
    CHECK_THROWS_WITH(do_call(engine, plan_of(engine, 2, 8), Path::kPool, 1), DeadlineExceeded,
                      "rank 2");
    CHECK(now_ns() - begin >= kSecond);
    CHECK(now_ns() - begin < 3 * kSecond);
    self.note(1).fetch_add(1);
    wait_until([&] { return self.note(2).load() == 1; });
  });
  wait_until([&] { return meeting->arrived[0].load() == 3; });
  kill(pids[2], SIGSTOP);
  wait_until([&] { return meeting->notes[1].load() == 2; });
  kill(pids[2], SIGCONT);
  for (const pid_t pid : pids) CHECK_EQ(finish_process(pid), 0);
}

TEST(a_rank_that_leaves_is_told_from_one_that_died) {
  run_ranks(2, [](Rank& self) {
    {
      Member member(self);
      Engine& engine = member.engine();
      do_call(engine, plan_of(engine, 2, 8), Path::kPool, 0);
      if (self.rank() == 0) {
        CHECK_THROWS_WITH(do_call(engine, plan_of(engine, 2, 8), Path::kPool, 1), PeerLost,
                          "closed the group");
      }
    }
    self.barrier(0);
  });
}

TEST(a_forked_child_cannot_use_the_group) {
  run_ranks(2, [](Rank& self) {
    Member member(self);
    Engine& engine = member.engine();
    do_call(engine, plan_of(engine, 2, 8), Path::kPool, 0);
    const pid_t child = fork();
    if (child == 0) {
      bool refused = false;
      try {
        engine.acquire(Role::kCombine, 0, 8);
      } catch (const Closed& error) {
        refused = std::string(error.what()).find("fork") != std::string::npos;
      }
      _exit(refused ? 0 : 1);
    }
    CHECK_EQ(finish_process(child), 0);
    do_call(engine, plan_of(engine, 2, 8), Path::kPool, 1);
    self.barrier(0);
  });
}

TEST(two_groups_in_one_process) {
  run_ranks(4, [](Rank& self) {
    // Pairs (0, 1) and (2, 3), inside the group of all four.
    Listener listener;
    auto& slots = self.meeting().addresses;
    Member everybody(self);
    self.barrier(0);
    std::memcpy(slots[static_cast<size_t>(self.rank())].data(), listener.address().c_str(),
                listener.address().size() + 1);
    self.barrier(1);
    const int first = self.rank() / 2 * 2;
    const std::vector<std::string> addresses = {slots[static_cast<size_t>(first)].data(),
                                                slots[static_cast<size_t>(first) + 1].data()};
    SharedGroup pair(self.rank() % 2, 2, addresses, test_token('p'), std::move(listener),
                     process_config());
    for (int call = 0; call < 30; ++call) {
      do_call(everybody.engine(), plan_of(everybody.engine(), 3, 20), Path::kPool, call);
      do_call(pair.engine(), plan_of(pair.engine(), 5, 10), Path::kPool, call);
    }
    self.barrier(2);
  });
}

int main(int argc, char** argv) { return run_all(argc, argv); }
