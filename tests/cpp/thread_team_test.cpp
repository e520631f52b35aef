#include "kernels/cpu/thread_team.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "check.h"

namespace symmoe {
namespace {

using kernels::run_parts;
using kernels::useful_threads;

struct Counts {
  explicit Counts(int parts) : of(static_cast<size_t>(parts)) {}
  std::vector<std::atomic<int>> of;
  bool all(int wanted) const {
    for (const auto& count : of) {
      if (count.load() != wanted) return false;
    }
    return true;
  }
};

void count_part(void* context, int part) {
  ++static_cast<Counts*>(context)->of[static_cast<size_t>(part)];
}

TEST(every_part_runs_once) {
  for (int repeat = 0; repeat < 200; ++repeat) {
    const int parts = 1 + repeat % 7;
    Counts counts(parts);
    run_parts(parts, count_part, &counts);
    CHECK(counts.all(1));
    // Sometimes long enough for the workers to park.
    if (repeat % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(a_part_may_use_the_team_itself) {
  Counts counts(3);
  run_parts(2, [](void* context, int) { run_parts(3, count_part, context); }, &counts);
  CHECK(counts.all(2));
}

TEST(callers_on_many_threads) {
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&wrong] {
      for (int repeat = 0; repeat < 50; ++repeat) {
        Counts counts(3);
        run_parts(3, count_part, &counts);
        if (!counts.all(1)) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK_EQ(wrong.load(), 0);
}

#if !defined(__SANITIZE_THREAD__)  // which allows no thread in a child of a threaded process
TEST(forked_children_get_their_own_team) {
  Counts before(3);
  run_parts(3, count_part, &before);
  for (bool by_exit : {false, true}) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      Counts counts(4);
      run_parts(4, count_part, &counts);
      run_parts(4, count_part, &counts);
      CHECK(counts.all(2));
      by_exit ? std::exit(0) : _exit(0);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
  }
  Counts after(3);
  run_parts(3, count_part, &after);
  CHECK(after.all(1));
}
#endif

TEST(small_work_stays_on_the_caller) {
  CHECK_EQ(useful_threads(1, int64_t{1} << 40), 1);
  CHECK_EQ(useful_threads(0, int64_t{1} << 40), 1);
  CHECK_EQ(useful_threads(8, 0), 1);
  CHECK_EQ(useful_threads(8, 100'000), 1);
  CHECK_EQ(useful_threads(8, int64_t{1} << 40), 8);
}

}  // namespace
}  // namespace symmoe

int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
