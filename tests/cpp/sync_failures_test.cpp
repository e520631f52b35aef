// tsan
// What a rank does when a peer does not come: the deadline, the watch, and their words.

#include <thread>

#include "channel_ranks.h"
#include "sync/adaptive_wait.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kForever = 3'600'000'000'000;

// A policy for tests that wait in vain.
WaitPolicy impatient(int64_t spin_ns) {
  WaitPolicy policy;
  policy.spin_ns = spin_ns;
  policy.slice_ns = 5 * kMillisecond;
  policy.deadline_ns = 60 * kMillisecond;
  return policy;
}

// Calls a function on every look.
class FunctionWatch : public Watch {
 public:
  explicit FunctionWatch(std::function<void(int, int64_t, const std::string&)> function)
      : function_(std::move(function)) {}
  void look(int rank, int64_t waited_ns, const std::string& context) override {
    function_(rank, waited_ns, context);
  }

 private:
  std::function<void(int, int64_t, const std::string&)> function_;
};

template <typename Type>
std::string words_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Type& error) {
    return error.what();
  }
  fail(__FILE__, __LINE__, "nothing was thrown");
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(the_deadline_names_call_rank_epoch_and_who_is_missing) {
  for (const int64_t spin_ns : {int64_t{0}, int64_t{50'000}, kForever}) {
    const Lines lines(4, 7);
    PatientWatch watch;
    Channel channel = lines.channel(2, impatient(spin_ns), watch);
    channel.publish({});
    lines[3].epoch = 8;
    const int64_t begin = now_ns();
    const std::string words =
        words_of<DeadlineExceeded>([&] { channel.await_peers("reduce_scatter"); });
    CHECK(now_ns() - begin >= 60 * kMillisecond);
    CHECK(now_ns() - begin < 3000 * kMillisecond);
    CHECK_MSG(contains(words, "reduce_scatter (combine, lane 0), rank 2, epoch 8: waited "), words);
    CHECK_MSG(contains(words, "for rank 0 (at epoch 7), rank 1 (at epoch 7)"), words);
    CHECK_MSG(!contains(words, "rank 3"), words);
    CHECK(lines.no_waiters());
  }
}

TEST(the_deadline_of_a_guard_names_the_reader) {
  const Lines lines(3);
  PatientWatch watch;
  Channel channel = lines.channel(0, impatient(0), watch);
  channel.publish({});
  lines[1].epoch = lines[2].epoch = lines[1].done = 1;
  channel.await_peers("reduce_scatter");
  channel.finish();
  const std::string words = words_of<DeadlineExceeded>([&] { channel.guard(1, "acquire"); });
  CHECK_MSG(contains(words, "acquire (combine, lane 0), rank 0, epoch 1, waiting for its readers"),
            words);
  CHECK_MSG(contains(words, "for rank 2 (at epoch 0)"), words);
  CHECK_MSG(!contains(words, "rank 1"), words);
}

TEST(only_missing_ranks_are_looked_at) {
  const Lines lines(4);
  std::vector<int> looked_at;
  int64_t waited = 0;
  FunctionWatch watch([&](int rank, int64_t waited_ns, const std::string& context) {
    looked_at.push_back(rank);
    CHECK(waited_ns >= waited);
    CHECK(waited_ns >= 5 * kMillisecond);
    waited = waited_ns;
    CHECK_EQ(context, "all_gather (combine, lane 0), rank 1, epoch 1");
    if (looked_at.size() == 4) throw PeerLost(context + ": gone");
  });
  lines[2].epoch = 1;
  Channel channel = lines.channel(1, impatient(50'000), watch);
  channel.publish({});
  CHECK_THROWS_WITH(channel.await_peers("all_gather"), PeerLost, "epoch 1: gone");
  CHECK_EQ(looked_at.size(), size_t{4});
  for (size_t i = 0; i < 4; ++i) CHECK_EQ(looked_at[i], i % 2 == 0 ? 0 : 3);
  CHECK(lines.no_waiters());
}

TEST(a_rank_that_arrived_before_it_ended_is_not_lost) {
  for (const int64_t spin_ns : {int64_t{0}, kForever}) {
    const Lines lines(2);
    FunctionWatch watch([&](int rank, int64_t, const std::string&) {
      lines[rank].epoch = 1;
      throw PeerLost("it ended after its last call");
    });
    Channel channel = lines.channel(0, impatient(spin_ns), watch);
    channel.publish({});
    channel.await_peers("reduce_scatter");
  }
}

TEST(one_lost_rank_is_reported_although_another_arrived) {
  const Lines lines(3);
  FunctionWatch watch([&](int rank, int64_t, const std::string&) {
    if (rank == 1) lines[1].epoch = 1;
    throw PeerLost("rank " + std::to_string(rank) + " ended");
  });
  Channel channel = lines.channel(0, impatient(0), watch);
  channel.publish({});
  CHECK_THROWS_WITH(channel.await_peers("reduce_scatter"), PeerLost, "rank 2 ended");
}

TEST(a_rank_that_arrives_during_the_last_look_is_in_time) {
  const Lines lines(2);
  WaitPolicy policy = impatient(0);
  policy.deadline_ns = policy.slice_ns;
  FunctionWatch watch([&](int rank, int64_t, const std::string&) { lines[rank].epoch = 1; });
  Channel channel = lines.channel(0, policy, watch);
  channel.publish({});
  channel.await_peers("reduce_scatter");
}

// The flag comes while the rank sleeps, from a thread that does wake it.
TEST(a_sleeping_rank_is_woken_long_before_its_slice_ends) {
  const Lines lines(2);
  PatientWatch watch;
  WaitPolicy policy;
  policy.spin_ns = 0;
  policy.slice_ns = 30'000 * kMillisecond;
  CHECK(run_threads(2, [&](int rank) {
    Channel channel = lines.channel(rank, policy, watch);
    if (rank == 1) {
      while (lines[1].epoch_waiters.load() == 0) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const int64_t begin = now_ns();
    channel.publish({});
    channel.await_peers("reduce_scatter");
    CHECK(now_ns() - begin < 15'000 * kMillisecond);
    channel.finish();
  }));
  CHECK(lines.no_waiters());
}

// The same for a writer that sleeps until its reader has finished.
TEST(a_sleeping_writer_is_woken_by_its_last_reader) {
  const Lines lines(2);
  PatientWatch watch;
  WaitPolicy policy;
  policy.spin_ns = 0;
  policy.slice_ns = 30'000 * kMillisecond;
  CHECK(run_threads(2, [&](int rank) {
    Channel channel = lines.channel(rank, policy, watch);
    channel.publish({});
    channel.await_peers("reduce_scatter");
    if (rank == 1) {
      while (lines[1].done_waiters.load() == 0) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    channel.finish();
    const int64_t begin = now_ns();
    channel.guard(1, "acquire");
    CHECK(now_ns() - begin < 15'000 * kMillisecond);
  }));
  CHECK(lines.no_waiters());
}

TEST(ranks_alone_wait_for_nobody) {
  const Lines lines(1);
  FunctionWatch watch([](int, int64_t, const std::string&) { throw Error("looked at nobody"); });
  Channel channel = lines.channel(0, impatient(0), watch);
  for (uint32_t call = 1; call < 10; ++call) {
    channel.publish({});
    channel.await_peers("reduce_scatter");
    channel.finish();
    channel.guard(call, "acquire");
  }
}

int main(int argc, char** argv) { return run_all(argc, argv); }
