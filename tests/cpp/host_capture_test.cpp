// tsan
// What a capture forbids, rule by rule, as CUDA has them, and what becomes of one that was broken.

#include <atomic>
#include <functional>
#include <thread>

#include "base/error.h"
#include "host_backend.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

// A device, two streams, an event and memory of a test.
struct Scene {
  std::shared_ptr<Device> device = open_host();
  Stream stream{device};
  Stream other{device};
  Event event{device};
  const DeviceTable& table = device->table();

  void begin(CaptureMode mode = kCaptureGlobal) const {
    CHECK_EQ(host().begin_capture(stream.handle(), mode), int{kDeviceOk});
  }

  // Ends the capture; whether it gave a graph.
  bool end() const {
    HostGraph graph = nullptr;
    const int status = host().end_capture(stream.handle(), &graph);
    CHECK_EQ(status, graph == nullptr ? int{kDeviceInvalidCapture} : int{kDeviceOk});
    if (graph != nullptr) CHECK_EQ(host().destroy_graph(graph), int{kDeviceOk});
    CHECK(!device->capture_state(stream.handle()).active);
    return graph != nullptr;
  }

  int allocate() const {
    void* memory = nullptr;
    const int status = table.allocate(&memory, 100);
    if (status == kDeviceOk) CHECK_EQ(table.release(memory), int{kDeviceOk});
    return status;
  }
};

int in_thread(const std::function<int()>& body) {
  int status = -1;
  std::thread([&] { status = body(); }).join();
  return status;
}

}  // namespace

TEST(captured_work_does_not_run) {
  const Scene scene;
  bool ran = false;
  scene.begin();
  CHECK_EQ(enqueue(scene.stream.handle(), [&] { ran = true; }), int{kDeviceOk});
  CHECK(scene.end());
  scene.stream.synchronize();
  CHECK(!ran);
}

TEST(the_state_names_each_capture) {
  const Scene scene;
  CHECK(!scene.device->capture_state(scene.stream.handle()).active);
  scene.begin();
  const CaptureState first = scene.device->capture_state(scene.stream.handle());
  CHECK(first.active);
  CHECK(!scene.device->capture_state(scene.other.handle()).active);
  CHECK(!scene.device->capture_state(nullptr).active);
  CHECK(scene.end());
  scene.begin();
  const CaptureState second = scene.device->capture_state(scene.stream.handle());
  CHECK(second.active);
  CHECK(second.id != first.id);
  CHECK(scene.end());
}

TEST(disturbing_calls_break_a_global_capture) {
  const Scene scene;
  void* memory = nullptr;
  CHECK_EQ(scene.table.allocate(&memory, 100), int{kDeviceOk});
  Event recorded(scene.device);
  recorded.record(scene.other.handle());
  const std::function<int()> calls[] = {
      [&] { return scene.allocate(); },
      [&] { return scene.table.release(memory); },
      [&] { return scene.table.allocate_pinned(&memory, 100); },
      [&] { return scene.table.release_pinned(memory); },
      [&] { return scene.table.stream_synchronize(scene.other.handle()); },
      [&] { return scene.table.stream_query(scene.other.handle()); },
      [&] { return scene.table.event_query(recorded.handle()); },
      [&] { return host().synchronize(); },
  };
  for (const auto& call : calls) {
    scene.begin();
    CHECK_EQ(call(), int{kDeviceInvalidCapture});
    CHECK(!scene.end());
    scene.begin();
    CHECK_EQ(in_thread(call), int{kDeviceInvalidCapture});  // from whatever thread
    CHECK(!scene.end());
  }
  CHECK_EQ(scene.table.release(memory), int{kDeviceOk});
}

TEST(harmless_calls_leave_a_capture_whole) {
  const Scene scene;
  scene.begin();
  {
    const Stream made(scene.device);
    Event recorded(scene.device);
    recorded.record(made.handle());
    bool ran = false;
    CHECK_EQ(enqueue(made.handle(), [&] { ran = true; }), int{kDeviceOk});
    const RelaxedCapture relaxed(*scene.device);
    made.synchronize();
    CHECK(ran);
    CHECK(recorded.done());
  }
  CHECK(scene.end());
}

TEST(the_mode_of_the_capture_decides_about_other_threads) {
  const Scene scene;
  const auto allocate = [&] { return scene.allocate(); };

  scene.begin(kCaptureThreadLocal);
  CHECK_EQ(in_thread(allocate), int{kDeviceOk});
  CHECK(scene.end());
  scene.begin(kCaptureThreadLocal);
  CHECK_EQ(allocate(), int{kDeviceInvalidCapture});
  CHECK(!scene.end());

  scene.begin(kCaptureRelaxed);
  CHECK_EQ(allocate(), int{kDeviceOk});
  CHECK_EQ(in_thread(allocate), int{kDeviceOk});
  CHECK(scene.end());
}

TEST(the_mode_of_the_thread_decides_about_itself) {
  const Scene scene;
  const auto allocate_in_mode = [&](CaptureMode mode) {
    CaptureMode changed = mode;
    CHECK_EQ(scene.table.exchange_capture_mode(&changed), int{kDeviceOk});
    const int status = scene.allocate();
    CHECK_EQ(scene.table.exchange_capture_mode(&changed), int{kDeviceOk});
    CHECK_EQ(changed, mode);
    return status;
  };
  scene.begin();
  CHECK_EQ(allocate_in_mode(kCaptureRelaxed), int{kDeviceOk});
  CHECK_EQ(in_thread([&] { return allocate_in_mode(kCaptureRelaxed); }), int{kDeviceOk});
  CHECK_EQ(in_thread([&] { return allocate_in_mode(kCaptureThreadLocal); }), int{kDeviceOk});
  CHECK(scene.end());
  scene.begin();
  CHECK_EQ(allocate_in_mode(kCaptureThreadLocal), int{kDeviceInvalidCapture});
  CHECK(!scene.end());
}

// No mode allows what contradicts the capture itself.
TEST(a_captured_stream_cannot_be_waited_for_from_outside) {
  const Scene scene;
  const RelaxedCapture relaxed(*scene.device);
  scene.begin();
  CHECK_EQ(scene.table.stream_synchronize(scene.stream.handle()), int{kDeviceInvalidCapture});
  CHECK(!scene.end());
  scene.begin();
  CHECK_EQ(scene.table.stream_query(scene.stream.handle()), int{kDeviceInvalidCapture});
  CHECK(!scene.end());
}

TEST(a_captured_event_cannot_be_queried) {
  Scene scene;
  const RelaxedCapture relaxed(*scene.device);
  scene.begin();
  scene.event.record(scene.stream.handle());
  CHECK_THROWS_WITH(scene.event.done(), DeviceError, "recorded in a capture");
  CHECK(!scene.end());
  CHECK_THROWS_WITH(scene.event.done(), DeviceError, "recorded in a capture");
  scene.event.record(scene.stream.handle());
  scene.stream.synchronize();
  CHECK(scene.event.done());
}

TEST(a_captured_stream_cannot_wait_for_what_happens_outside) {
  Scene scene;
  scene.event.record(scene.other.handle());
  scene.begin();
  CHECK_EQ(scene.table.stream_wait(scene.stream.handle(), scene.event.handle()),
           int{kDeviceInvalidCapture});
  CHECK(!scene.end());
}

TEST(the_end_of_a_capture_ends_its_events) {
  Scene scene;
  scene.begin();
  scene.event.record(scene.stream.handle());
  CHECK(scene.end());
  CHECK_THROWS_WITH(scene.event.block(scene.other.handle()), DeviceError, "has ended");
  scene.begin();
  CHECK_THROWS_WITH(scene.event.block(scene.stream.handle()), DeviceError, "has ended");
  CHECK(!scene.end());
}

TEST(a_broken_capture_refuses_all_work) {
  Scene scene;
  scene.begin();
  CHECK_EQ(scene.allocate(), int{kDeviceInvalidCapture});
  CHECK_EQ(enqueue(scene.stream.handle(), [] {}), int{kDeviceInvalidCapture});
  CHECK_THROWS_WITH(scene.event.record(scene.stream.handle()), DeviceError, "broken before");
  CHECK_THROWS_WITH(scene.device->capture_state(scene.stream.handle()), InvalidArgument,
                    "allocate was called during it");
  CHECK(!scene.end());
  CHECK_EQ(enqueue(scene.stream.handle(), [] {}), int{kDeviceOk});
  scene.stream.synchronize();
}

TEST(a_second_stream_joins_and_must_come_back) {
  Scene scene;
  scene.begin();
  scene.event.record(scene.stream.handle());
  scene.event.block(scene.other.handle());
  CHECK(scene.device->capture_state(scene.other.handle()).active);
  CHECK_EQ(scene.device->capture_state(scene.other.handle()).id,
           scene.device->capture_state(scene.stream.handle()).id);
  CHECK_EQ(enqueue(scene.other.handle(), [] {}), int{kDeviceOk});
  CHECK(!scene.end());  // it has work that nobody waits for
  CHECK(!scene.device->capture_state(scene.other.handle()).active);

  scene.begin();
  scene.event.record(scene.stream.handle());
  scene.event.block(scene.other.handle());
  CHECK_EQ(enqueue(scene.other.handle(), [] {}), int{kDeviceOk});
  scene.event.record(scene.other.handle());
  scene.event.block(scene.stream.handle());
  CHECK(scene.end());
}

TEST(a_capture_ends_where_it_began) {
  Scene scene;
  scene.begin();
  scene.event.record(scene.stream.handle());
  scene.event.block(scene.other.handle());
  HostGraph graph = nullptr;
  CHECK_EQ(host().end_capture(scene.other.handle(), &graph), int{kDeviceInvalidCapture});
  CHECK(!scene.end());
  CHECK_EQ(host().end_capture(scene.stream.handle(), &graph), int{kDeviceInvalidCapture});

  scene.begin();
  CHECK_EQ(in_thread([&] { return host().end_capture(scene.stream.handle(), &graph); }),
           int{kDeviceInvalidCapture});
  CHECK(!scene.end());
  scene.begin(kCaptureRelaxed);
  CHECK_EQ(in_thread([&] { return host().end_capture(scene.stream.handle(), &graph); }),
           int{kDeviceOk});
  CHECK_EQ(host().destroy_graph(graph), int{kDeviceOk});
}

TEST(captures_do_not_mix) {
  Scene scene;
  scene.begin();
  CHECK_EQ(host().begin_capture(scene.other.handle(), kCaptureGlobal), int{kDeviceOk});
  scene.event.record(scene.other.handle());
  CHECK_EQ(scene.table.stream_wait(scene.stream.handle(), scene.event.handle()),
           int{kDeviceInvalidCapture});
  CHECK(!scene.end());
  HostGraph graph = nullptr;
  CHECK_EQ(host().end_capture(scene.other.handle(), &graph), int{kDeviceInvalidCapture});
}

TEST(two_captures_may_go_on_at_once) {
  Scene scene;
  scene.begin();
  CHECK_EQ(host().begin_capture(scene.other.handle(), kCaptureGlobal), int{kDeviceOk});
  HostGraph graph = nullptr;
  CHECK_EQ(host().end_capture(scene.other.handle(), &graph), int{kDeviceOk});
  CHECK_EQ(host().destroy_graph(graph), int{kDeviceOk});
  CHECK(scene.end());
}

TEST(some_streams_cannot_be_captured) {
  Scene scene;
  CHECK_EQ(host().begin_capture(nullptr, kCaptureGlobal), int{kDeviceInvalidCapture});
  scene.begin();
  CHECK_EQ(host().begin_capture(scene.stream.handle(), kCaptureGlobal),
           int{kDeviceInvalidCapture});  // already is
  CHECK(!scene.end());
  scene.begin();
  scene.event.record(scene.stream.handle());
  CHECK_THROWS_WITH(scene.event.block(nullptr), DeviceError, "default stream");
  CHECK(!scene.end());
}

TEST(a_captured_stream_cannot_go) {
  Scene scene;
  scene.begin();
  CHECK_EQ(scene.table.stream_destroy(scene.stream.handle()), int{kDeviceInvalidCapture});
  CHECK(!scene.end());
  scene.stream.synchronize();
}

TEST(broken_captures_drop_their_work) {
  const Scene scene;
  const auto held = std::make_shared<int>(0);
  scene.begin();
  CHECK_EQ(enqueue(scene.stream.handle(), [held] { ++*held; }), int{kDeviceOk});
  CHECK_EQ(held.use_count(), 2L);
  CHECK_EQ(scene.allocate(), int{kDeviceInvalidCapture});
  CHECK(!scene.end());
  CHECK_EQ(held.use_count(), 1L);
  CHECK_EQ(*held, 0);
}

int main(int argc, char** argv) { return run_all(argc, argv); }
