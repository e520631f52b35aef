// tsan
// The protocol of one channel: rows are seen whole, never overtaken, and no wake-up is lost.

#include "sync/channel.h"

#include <sched.h>
#include <sys/resource.h>

#include <ctime>
#include <thread>

#include "channel_ranks.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

void play(int ranks, int calls, const WaitPolicy& policy, uint32_t first_epoch = 0) {
  const Lines lines(ranks, first_epoch);
  std::vector<Rows> rows(static_cast<size_t>(ranks));
  PatientWatch watch;
  CHECK(run_threads(ranks, [&](int rank) {
    Channel channel = lines.channel(rank, policy, watch);
    CHECK_EQ(channel.epoch(), first_epoch);
    play_calls(channel, rows, calls);
  }));
  for (int rank = 0; rank < ranks; ++rank) {
    CHECK_EQ(lines[rank].epoch.load(), first_epoch + static_cast<uint32_t>(calls));
    CHECK_EQ(lines[rank].done.load(), first_epoch + static_cast<uint32_t>(calls));
  }
  CHECK(lines.no_waiters());
}

int64_t process_cpu_ns() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

TEST(rows_are_seen_whole_and_never_overwritten) {
  play(1, 10, {});
  play(2, 5000, {});
  play(3, 2000, {});
  play(4, 2000, {});
  play(8, 500, {});
}

TEST(a_rank_that_never_sleeps_sees_the_same) {
  WaitPolicy spinning;
  spinning.spin_ns = 3'600'000'000'000;
  play(2, 3000, spinning);
  play(4, 1000, spinning);
}

TEST(a_rank_that_never_spins_sees_the_same) {
  WaitPolicy sleeping;
  sleeping.spin_ns = 0;
  play(2, 3000, sleeping);
  play(4, 1000, sleeping);
  play(8, 200, sleeping);
}

TEST(epochs_wrap_round) {
  play(3, 300, {}, UINT32_MAX - 150);
  play(3, 300, {}, uint32_t{INT32_MAX} - 150);
}

// A window that no call has used for 2^31 calls still carries its old number.
TEST(an_ancient_epoch_is_guarded_at_once) {
  for (const uint32_t now : {0x80000003u, 0xfffffff0u, 0x7fffffffu, 5u}) {
    const Lines lines(2, now);
    PatientWatch watch;
    WaitPolicy policy;
    policy.slice_ns = 10'000'000;
    policy.deadline_ns = 50'000'000;
    Channel channel = lines.channel(0, policy, watch);
    for (const uint32_t old : {0u, 1u, 0x7ffffff0u, 0x80000000u, 0x80000002u, now - 1, now}) {
      if (old != now + 1) channel.guard(old, "acquire");
    }
  }
}

TEST(guard_waits_for_the_last_reader) {
  for (const int64_t spin_ns : {int64_t{0}, int64_t{50'000}, int64_t{3'600'000'000'000}}) {
    const Lines lines(3);
    PatientWatch watch;
    WaitPolicy policy;
    policy.spin_ns = spin_ns;
    std::atomic<bool> last_has_read = false;
    CHECK(run_threads(3, [&](int rank) {
      Channel channel = lines.channel(rank, policy, watch);
      channel.publish({});
      channel.await_peers("reduce_scatter");
      if (rank == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        last_has_read = true;
      }
      channel.finish();
      if (rank == 2) return;
      channel.guard(1, "acquire");
      CHECK(last_has_read.load());
    }));
    CHECK(lines.no_waiters());
  }
}

// Without sleeping, a wait costs no more than its slice; a lost wake-up costs all of it.
TEST(no_wake_up_is_lost) {
  constexpr int64_t kSlice = 30'000'000'000;
  WaitPolicy policy;
  policy.spin_ns = 0;
  policy.slice_ns = kSlice;
  for (const int ranks : {2, 3, 4}) {
    const Lines lines(ranks);
    PatientWatch watch;
    const int calls = 16'000 / ranks / ranks;
    CHECK(run_threads(ranks, [&](int rank) {
      Channel channel = lines.channel(rank, policy, watch);
      uint32_t random = static_cast<uint32_t>(rank) + 1;
      for (int call = 0; call < calls; ++call) {
        const int64_t begin = now_ns();
        channel.guard(channel.epoch(), "acquire");
        channel.publish({});
        channel.await_peers("reduce_scatter");
        channel.finish();
        CHECK(now_ns() - begin < kSlice / 2);
        // Ranks arrive in changing orders and at changing distances.
        random = random * 1664525 + 1013904223;
        for (uint32_t i = 0; i < random >> 22; ++i)
          std::atomic_signal_fence(std::memory_order_seq_cst);
      }
    }));
    CHECK(lines.no_waiters());
  }
}

// More ranks than processors: whoever waits on the processor of a peer makes room at once. Counted
// in processor time, which other processes on this machine do not change.
TEST(ranks_on_one_processor_do_not_spin_against_each_other) {
  const Lines lines(2);
  std::vector<Rows> rows(2);
  PatientWatch watch;
  WaitPolicy policy;
  policy.spin_ns = policy.yield_ns = policy.slice_ns = 3'600'000'000'000;
  cpu_set_t before;
  CHECK_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(current_cpu(), &one);
  CHECK_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const int64_t begin = process_cpu_ns();
  const bool ok = run_threads(2, [&](int rank) {
    Channel channel = lines.channel(rank, policy, watch);
    play_calls(channel, rows, 400);
  });
  const int64_t spent = process_cpu_ns() - begin;
  CHECK_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  CHECK(ok);
  // Spinning until the scheduler's tick takes milliseconds per call.
  CHECK_MSG(spent < 400'000'000, std::to_string(spent / 1000) + " us of processor time");
}

TEST(the_text_is_cut_and_ends) {
  const Lines lines(1);
  PatientWatch watch;
  Channel channel = lines.channel(0, {}, watch);
  const std::string text(3 * FlagLine::kTextBytes, 'x');
  channel.publish({.text = text});
  CHECK_EQ(std::string(lines[0].text), text.substr(0, FlagLine::kTextBytes - 1));
  channel.publish({.text = "short"});
  CHECK_EQ(std::string(lines[0].text), "short");
  channel.publish({});
  CHECK_EQ(std::string(lines[0].text), "");
}

int main(int argc, char** argv) { return run_all(argc, argv); }
