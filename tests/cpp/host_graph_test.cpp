// tsan
// Graphs of the host back end: what was captured runs at every launch, in the captured order.

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "host_backend.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

// Captures what `body` queues on the stream.
template <typename Body>
HostGraph capture(const Stream& stream, Body&& body) {
  CHECK_EQ(host().begin_capture(stream.handle(), kCaptureGlobal), int{kDeviceOk});
  body();
  HostGraph graph = nullptr;
  CHECK_EQ(host().end_capture(stream.handle(), &graph), int{kDeviceOk});
  return graph;
}

void launch(HostGraph graph, const Stream& stream) {
  CHECK_EQ(host().launch_graph(graph, stream.handle()), int{kDeviceOk});
}

void destroy(HostGraph graph) { CHECK_EQ(host().destroy_graph(graph), int{kDeviceOk}); }

}  // namespace

TEST(a_graph_runs_at_each_launch_in_stream_order) {
  const auto device = open_host();
  const Stream stream(device);
  std::vector<int> order;
  HostGraph graph = capture(stream, [&] {
    enqueue(stream.handle(), [&] { order.push_back(1); });
    enqueue(stream.handle(), [&] { order.push_back(2); });
  });
  launch(graph, stream);
  enqueue(stream.handle(), [&] { order.push_back(3); });
  launch(graph, stream);
  stream.synchronize();
  CHECK((order == std::vector<int>{1, 2, 3, 1, 2}));
  destroy(graph);
}

TEST(an_empty_graph_is_a_graph) {
  const auto device = open_host();
  const Stream stream(device);
  HostGraph graph = capture(stream, [] {});
  launch(graph, stream);
  stream.synchronize();
  destroy(graph);
}

// Replayed a hundred times, while all kinds of other memory come and go.
TEST(a_graph_keeps_to_the_memory_it_captured) {
  const auto device = open_host();
  const Stream stream(device);
  const Stream churning(device);
  constexpr size_t kBytes = 5000;
  const DeviceMemory input(device, kBytes);
  const DeviceMemory middle(device, kBytes);
  const DeviceMemory output(device, kBytes);
  HostGraph graph = capture(stream, [&] {
    device->copy(middle.get(), input.get(), kBytes, stream.handle());
    device->copy(output.get(), middle.get(), kBytes, stream.handle());
    device->fill(middle.get(), 0xEE, kBytes, stream.handle());
  });
  for (int round = 0; round < 100; ++round) {
    const DeviceMemory other(device, kBytes + static_cast<size_t>(round));
    device->fill(other.get(), 0x55, other.size(), churning.handle());
    device->fill(input.get(), round, kBytes, stream.handle());
    launch(graph, stream);
    stream.synchronize();
    CHECK_EQ(static_cast<const unsigned char*>(output.get())[0], round);
    CHECK_EQ(static_cast<const unsigned char*>(output.get())[kBytes - 1], round);
    CHECK_EQ(static_cast<const unsigned char*>(middle.get())[kBytes / 2], 0xEE);
    churning.synchronize();
  }
  destroy(graph);
}

TEST(a_graph_outlives_its_streams) {
  const auto device = open_host();
  int runs = 0;
  HostGraph graph = nullptr;
  {
    const Stream stream(device);
    const Stream other(device);
    Event event(device);
    graph = capture(stream, [&] {
      event.record(stream.handle());
      event.block(other.handle());
      enqueue(other.handle(), [&] { ++runs; });
      event.record(other.handle());
      event.block(stream.handle());
    });
  }
  const Stream later(device);
  launch(graph, later);
  launch(graph, later);
  later.synchronize();
  CHECK_EQ(runs, 2);
  destroy(graph);
}

TEST(a_launched_graph_may_be_destroyed) {
  const auto device = open_host();
  const Stream stream(device);
  const auto runs = std::make_shared<int>(0);
  HostGraph graph = capture(stream, [&] { enqueue(stream.handle(), [runs] { ++*runs; }); });
  CHECK_EQ(runs.use_count(), 2L);
  const Gate gate;
  gate.close(stream.handle());
  launch(graph, stream);
  destroy(graph);
  gate.open();
  stream.synchronize();
  CHECK_EQ(*runs, 1);
  CHECK_EQ(runs.use_count(), 1L);
  CHECK(host().launch_graph(graph, stream.handle()) > kVendorStatus);
  CHECK(host().destroy_graph(graph) > kVendorStatus);
}

TEST(branches_run_between_fork_and_join) {
  const auto device = open_host();
  const Stream stream(device);
  const Stream other(device);
  Event forked(device);
  Event joined(device);
  std::vector<int> order;  // guarded by the captured events alone
  HostGraph graph = capture(stream, [&] {
    enqueue(stream.handle(), [&] { order.push_back(1); });
    forked.record(stream.handle());
    forked.block(other.handle());
    enqueue(other.handle(), [&] { order.push_back(2); });
    joined.record(other.handle());
    joined.block(stream.handle());
    enqueue(stream.handle(), [&] { order.push_back(3); });
  });
  for (int round = 0; round < 100; ++round) launch(graph, stream);
  stream.synchronize();
  CHECK_EQ(order.size(), size_t{300});
  for (size_t i = 0; i < order.size(); ++i) CHECK_EQ(order[i], static_cast<int>(i % 3) + 1);
  destroy(graph);
}

// What two collectives of different streams do, when each needs the other's peer to be under way.
TEST(branches_run_beside_each_other) {
  const auto device = open_host();
  const Stream stream(device);
  const Stream other(device);
  Event event(device);
  std::atomic<int> there = 0;
  const auto meet = [&there] {
    const int round = there.fetch_add(1) / 2;
    while (there.load() < 2 * (round + 1)) std::this_thread::yield();
  };
  HostGraph graph = capture(stream, [&] {
    event.record(stream.handle());
    event.block(other.handle());
    enqueue(stream.handle(), meet);
    enqueue(other.handle(), meet);
    event.record(other.handle());
    event.block(stream.handle());
  });
  for (int round = 0; round < 20; ++round) launch(graph, stream);
  stream.synchronize();
  CHECK_EQ(there.load(), 40);
  destroy(graph);
}

// Even on different streams: they would write the same memory.
TEST(launches_of_one_graph_follow_each_other) {
  const auto device = open_host();
  const Stream capturing(device);
  std::array<Stream, 3> streams{Stream(device), Stream(device), Stream(device)};
  std::atomic<bool> inside = false;
  std::atomic<int> overlaps = 0;
  int runs = 0;
  HostGraph graph = capture(capturing, [&] {
    enqueue(capturing.handle(), [&] {
      overlaps += inside.exchange(true);
      usleep(500);
      ++runs;
      inside = false;
    });
  });
  for (int round = 0; round < 30; ++round) launch(graph, streams[round % 3]);
  for (const Stream& stream : streams) stream.synchronize();
  CHECK_EQ(overlaps.load(), 0);
  CHECK_EQ(runs, 30);
  destroy(graph);
}

TEST(events_around_a_launch_see_all_of_it) {
  const auto device = open_host();
  const Stream stream(device);
  const Stream other(device);
  Event event(device);
  const Gate gate;
  std::atomic<bool> ran = false;
  HostGraph graph = capture(stream, [&] {
    event.record(stream.handle());
    event.block(other.handle());
    enqueue(other.handle(), [&] { ran = true; });
    event.record(other.handle());
    event.block(stream.handle());
  });
  gate.close(stream.handle());
  launch(graph, stream);
  event.record(stream.handle());
  CHECK(!event.done());
  usleep(20'000);
  CHECK(!ran);  // not even the branch, which has nothing else to wait for
  gate.open();
  while (!event.done()) std::this_thread::yield();
  CHECK(ran);
  destroy(graph);
}

TEST(captured_work_counts_once_and_replays_do_not) {
  const auto device = open_host();
  const Stream stream(device);
  const DeviceMemory memory(device, 100);
  const uint64_t before = host().count("fill");
  HostGraph graph = capture(stream, [&] { device->fill(memory.get(), 1, 100, stream.handle()); });
  CHECK_EQ(host().count("fill"), before + 1);
  for (int round = 0; round < 5; ++round) launch(graph, stream);
  stream.synchronize();
  CHECK_EQ(host().count("fill"), before + 1);
  destroy(graph);
}

TEST(graphs_in_graphs_are_refused) {
  const auto device = open_host();
  const Stream stream(device);
  HostGraph graph = capture(stream, [] {});
  CHECK_EQ(host().begin_capture(stream.handle(), kCaptureGlobal), int{kDeviceOk});
  CHECK_EQ(host().launch_graph(graph, stream.handle()), int{kDeviceInvalidCapture});
  HostGraph broken = nullptr;
  CHECK_EQ(host().end_capture(stream.handle(), &broken), int{kDeviceInvalidCapture});
  destroy(graph);
}

int main(int argc, char** argv) { return run_all(argc, argv); }
