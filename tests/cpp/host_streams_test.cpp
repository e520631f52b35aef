// tsan
// The host back end's streams and events: work runs later, in order, on threads that cost nothing
// while they have none.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "host_backend.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

constexpr int64_t kMillisecond = 1'000'000;

StreamHandle new_stream() {
  StreamHandle stream = nullptr;
  CHECK_EQ(host_table().stream_create(&stream), int{kDeviceOk});
  return stream;
}

EventHandle new_event() {
  EventHandle event = nullptr;
  CHECK_EQ(host_table().event_create(&event), int{kDeviceOk});
  return event;
}

void synchronize(StreamHandle stream) {
  CHECK_EQ(host_table().stream_synchronize(stream), int{kDeviceOk});
}

void destroy(StreamHandle stream) { CHECK_EQ(host_table().stream_destroy(stream), int{kDeviceOk}); }

}  // namespace

TEST(work_runs_later_and_in_order) {
  StreamHandle stream = new_stream();
  std::vector<int> order;
  std::atomic<bool> ran = false;
  const Gate gate;
  gate.close(stream);
  for (int i = 0; i < 100; ++i) enqueue(stream, [&, i] { order.push_back(i); });
  enqueue(stream, [&] { ran = true; });
  CHECK_EQ(host_table().stream_query(stream), int{kDeviceNotReady});
  CHECK(!ran);
  gate.open();
  synchronize(stream);
  CHECK_EQ(host_table().stream_query(stream), int{kDeviceOk});
  CHECK_EQ(order.size(), size_t{100});
  for (int i = 0; i < 100; ++i) CHECK_EQ(order[i], i);
  destroy(stream);
}

TEST(streams_do_not_wait_for_each_other) {
  StreamHandle held = new_stream();
  StreamHandle free_stream = new_stream();
  const Gate gate;
  gate.close(held);
  bool ran = false;
  enqueue(free_stream, [&] { ran = true; });
  synchronize(free_stream);
  CHECK(ran);
  CHECK_EQ(host_table().stream_query(held), int{kDeviceNotReady});
  gate.open();
  destroy(held);
  destroy(free_stream);
}

TEST(the_default_stream_is_a_stream) {
  bool ran = false;
  CHECK_EQ(enqueue(nullptr, [&] { ran = true; }), int{kDeviceOk});
  synchronize(nullptr);
  CHECK(ran);
  CHECK(host_table().stream_destroy(nullptr) > kVendorStatus);
}

TEST(a_delay_takes_its_time_in_stream_order) {
  StreamHandle stream = new_stream();
  const int64_t begin = now_ns();
  int64_t end = 0;
  CHECK_EQ(host().delay(stream, 20'000), int{kDeviceOk});
  enqueue(stream, [&] { end = now_ns(); });
  CHECK_EQ(host_table().stream_query(stream), int{kDeviceNotReady});
  synchronize(stream);
  CHECK(end - begin >= 20 * kMillisecond);
  destroy(stream);
}

TEST(events_order_a_chain_of_streams) {
  constexpr int kStreams = 6;
  std::array<StreamHandle, kStreams> streams{};
  std::array<EventHandle, kStreams> events{};
  for (int i = 0; i < kStreams; ++i) {
    streams[i] = new_stream();
    events[i] = new_event();
  }
  for (int round = 0; round < 50; ++round) {
    std::vector<int> order;  // guarded by the events alone
    const Gate gate;
    gate.close(streams[0]);
    for (int i = 0; i < kStreams; ++i) {
      if (i > 0) host_table().stream_wait(streams[i], events[i - 1]);
      enqueue(streams[i], [&order, i] { order.push_back(i); });
      host_table().event_record(events[i], streams[i]);
    }
    CHECK_EQ(host_table().event_query(events[kStreams - 1]), int{kDeviceNotReady});
    gate.open();
    synchronize(streams[kStreams - 1]);
    CHECK_EQ(host_table().event_query(events[kStreams - 1]), int{kDeviceOk});
    CHECK((order == std::vector<int>{0, 1, 2, 3, 4, 5}));
  }
  for (int i = 0; i < kStreams; ++i) {
    destroy(streams[i]);
    CHECK_EQ(host_table().event_destroy(events[i]), int{kDeviceOk});
  }
}

// As on a GPU: a wait is for the recording that was the last one when the wait was queued.
TEST(recording_again_moves_no_earlier_wait) {
  StreamHandle first = new_stream();
  StreamHandle second = new_stream();
  EventHandle event = new_event();
  host_table().event_record(event, first);
  host_table().stream_wait(second, event);
  const Gate gate;
  gate.close(first);
  host_table().event_record(event, first);
  synchronize(second);  // would hang if it waited for the gate
  CHECK_EQ(host_table().event_query(event), int{kDeviceNotReady});
  gate.open();
  synchronize(first);
  host_table().event_destroy(event);
  destroy(first);
  destroy(second);
}

TEST(a_destroyed_stream_still_does_its_work) {
  StreamHandle stream = new_stream();
  EventHandle event = new_event();
  std::atomic<bool> ran = false;
  const Gate gate;
  gate.close(stream);
  enqueue(stream, [&] { ran = true; });
  host_table().event_record(event, stream);
  destroy(stream);  // at once
  CHECK(!ran);
  gate.open();
  CHECK_EQ(host().synchronize(), int{kDeviceOk});
  CHECK(ran);
  CHECK_EQ(host_table().event_query(event), int{kDeviceOk});
  host_table().event_destroy(event);
}

TEST(handles_that_are_gone_are_noticed) {
  StreamHandle stream = new_stream();
  EventHandle event = new_event();
  destroy(stream);
  CHECK_EQ(host_table().event_destroy(event), int{kDeviceOk});
  new_stream();  // does not get the old one's handle
  new_event();
  CHECK(host_table().stream_destroy(stream) > kVendorStatus);
  CHECK_EQ(std::string(host_table().error_text(host_table().stream_query(stream))),
           "no such stream");
  CHECK(host_table().event_record(event, nullptr) > kVendorStatus);
  CHECK(host_table().event_destroy(event) > kVendorStatus);
  bool touched = false;
  CHECK(enqueue(stream, [&] { touched = true; }) > kVendorStatus);
  CHECK(!touched);
}

TEST(all_streams_can_be_waited_for) {
  std::atomic<int> ran = 0;
  std::vector<StreamHandle> streams;
  for (int i = 0; i < 5; ++i) {
    streams.push_back(new_stream());
    host().delay(streams.back(), 2000);
    enqueue(streams.back(), [&] { ++ran; });
  }
  CHECK_EQ(host().synchronize(), int{kDeviceOk});
  CHECK_EQ(ran.load(), 5);
  for (StreamHandle stream : streams) destroy(stream);
}

TEST(work_may_come_from_many_threads) {
  StreamHandle stream = new_stream();
  int sum = 0;  // only the stream's thread changes it
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) enqueue(stream, [&] { ++sum; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  synchronize(stream);
  CHECK_EQ(sum, 800);
  destroy(stream);
}

TEST(what_was_queued_is_dropped_after_its_run) {
  StreamHandle stream = new_stream();
  static std::atomic<int> runs;
  static std::atomic<int> drops;
  runs = 0;
  drops = 0;
  for (int i = 0; i < 10; ++i) {
    CHECK_EQ(host().enqueue(
                 stream, [](void*) { ++runs; },
                 [](void*) {
                   CHECK(drops < runs);
                   ++drops;
                 },
                 nullptr),
             int{kDeviceOk});
  }
  synchronize(stream);
  CHECK_EQ(runs.load(), 10);
  CHECK_EQ(drops.load(), 10);
  destroy(stream);
}

TEST(what_could_not_be_queued_stays_the_callers) {
  int calls = 0;
  const auto count = [](void* context) { ++*static_cast<int*>(context); };
  CHECK(host().enqueue(reinterpret_cast<StreamHandle>(7), count, count, &calls) > kVendorStatus);
  CHECK_EQ(calls, 0);
}

TEST(idle_streams_use_no_processor) {
  std::vector<StreamHandle> streams;
  for (int i = 0; i < 8; ++i) {
    streams.push_back(new_stream());
    enqueue(streams.back(), [] {});
    synchronize(streams.back());
  }
  rusage before{};
  rusage after{};
  getrusage(RUSAGE_SELF, &before);
  usleep(200'000);
  getrusage(RUSAGE_SELF, &after);
  const auto used = [](const rusage& usage) {
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
  };
  CHECK_MSG(used(after) - used(before) < 100'000, std::to_string(used(after) - used(before)));
  for (StreamHandle stream : streams) destroy(stream);
}

// Work that waits for ever, as for a peer that never comes, does not keep the process; what is
// queued behind it never begins.
TEST(a_process_ends_with_streams_that_hang) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    execl("/proc/self/exe", "host_streams_test", "hanging_child", nullptr);
    _exit(99);
  }
  const int64_t begin = now_ns();
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK(now_ns() - begin < 20'000 * kMillisecond);
}

namespace {

int end_with_hanging_streams() {
  StreamHandle hangs = new_stream();
  StreamHandle waits = new_stream();
  EventHandle event = new_event();
  static std::atomic<bool> began = false;
  enqueue(hangs, [] {
    began = true;
    while (true) pause();
  });
  host_table().event_record(event, hangs);
  host_table().stream_wait(waits, event);
  enqueue(waits, [] { _exit(98); });
  enqueue(hangs, [] { _exit(97); });
  StreamHandle slow = new_stream();
  host().delay(slow, 300'000);
  enqueue(slow, [] { _exit(96); });
  while (!began) std::this_thread::yield();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "hanging_child") return end_with_hanging_streams();
  return run_all(argc, argv);
}
