// tsan
// The classes over a device table, with the host back end under them.

#include "runtime/device.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "host_backend.h"

using namespace symmoe;
using namespace symmoe::check;

TEST(opening_gives_the_device_and_what_it_is) {
  const auto device = open_host(3);
  CHECK_EQ(device->ordinal(), 3);
  CHECK_EQ(std::string(device->kind()), "host");
  CHECK_EQ(std::string(device->properties().name), "host emulation");
  CHECK_EQ(device->properties().multiprocessors, 4);
  CHECK(device->properties().total_bytes > 0);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  device->memory(&free_bytes, &total_bytes);
  CHECK(free_bytes > 0);
  CHECK(free_bytes <= total_bytes);
}

TEST(the_environment_sets_the_size_of_the_host) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    setenv("SYMMOE_HOST_MULTIPROCESSORS", "7", 1);
    execl("/proc/self/exe", "runtime_device_test", "multiprocessors_child", nullptr);
    _exit(99);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 7);
}

TEST(what_cannot_be_opened_says_why) {
  CHECK_THROWS_WITH(Device::open("/nowhere/libno.so", 0), Unavailable, "/nowhere/libno.so");
  // A library that is there, but no back end.
  CHECK_THROWS_WITH(Device::open("libc.so.6", 0), Unavailable, "symmoe_device_table");
  CHECK_THROWS_WITH(open_host(8), Unavailable, "no host device 8: there are 8 devices");
  CHECK_THROWS_WITH(open_host(-1), Unavailable, "no host device -1");
}

TEST(a_runtime_that_fails_at_once_says_why) {
  open_host();
  host().fail("device_count", 1, kVendorStatus + 35);
  CHECK_THROWS_WITH(open_host(), Unavailable, "no host device: device_count: failure by order");
  host().fail("properties", 1, kVendorStatus + 3);
  CHECK_THROWS_WITH(open_host(), Unavailable, "host device 0: properties: failure by order");
  open_host();
}

TEST(statuses_become_errors_with_the_operation) {
  const auto device = open_host();
  device->require(kDeviceOk, "nothing");
  CHECK_THROWS_WITH(device->require(kDeviceOutOfMemory, "window"), OutOfMemory, "window: ");
  CHECK_THROWS_WITH(device->require(kDeviceInvalidCapture, "window"), DeviceError, "window: ");
  CHECK_THROWS_WITH(device->require(kVendorStatus + 77, "window"), DeviceError, "window: ");
}

TEST(memory_comes_and_goes_with_its_owner) {
  const auto device = open_host();
  const size_t before = host().live_bytes();
  {
    const DeviceMemory memory(device, 1000);
    const PinnedMemory pinned(device, 24);
    CHECK(memory.get() != nullptr);
    CHECK_EQ(memory.size(), size_t{1000});
    CHECK_EQ(pinned.size(), size_t{24});
    CHECK_EQ(host().live_bytes(), before + 1024);
  }
  CHECK_EQ(host().live_bytes(), before);
}

TEST(moved_memory_has_one_owner) {
  const auto device = open_host();
  const size_t before = host().live_bytes();
  DeviceMemory first(device, 100);
  void* address = first.get();
  DeviceMemory second(std::move(first));
  CHECK_EQ(second.get(), address);
  DeviceMemory third(device, 50);
  third = std::move(second);
  CHECK_EQ(third.get(), address);
  CHECK_EQ(third.size(), size_t{100});
  CHECK_EQ(host().live_bytes(), before + 100);
  third = DeviceMemory();
  CHECK(third.get() == nullptr);
  CHECK_EQ(host().live_bytes(), before);
}

TEST(no_bytes_need_no_memory) {
  const auto device = open_host();
  host().fail("allocate", 1, kDeviceOutOfMemory);
  const DeviceMemory nothing(device, 0);
  CHECK(nothing.get() == nullptr);
  host().fail("", 0, 0);
}

TEST(exhausted_memory_is_out_of_memory) {
  const auto device = open_host();
  host().limit_memory(host().live_bytes() + 4096);
  const DeviceMemory fits(device, 4000);
  CHECK_THROWS_WITH(DeviceMemory(device, 4000), OutOfMemory, "device memory of 4000 bytes");
  CHECK_THROWS_WITH(PinnedMemory(device, 97), OutOfMemory, "pinned memory of 97 bytes");
  const DeviceMemory still_fits(device, 96);
  host().limit_memory(0);
}

TEST(owners_keep_their_device) {
  auto device = open_host(5);
  const std::weak_ptr<Device> watched = device;
  std::optional<DeviceMemory> memory(std::in_place, device, 100);
  std::optional<Stream> stream(std::in_place, device);
  std::optional<Event> event(std::in_place, device);
  device.reset();
  stream->synchronize();
  memory.reset();
  stream.reset();
  CHECK(event->done());
  CHECK(!watched.expired());
  event.reset();
  CHECK(watched.expired());
}

TEST(copies_and_fills_follow_the_stream) {
  const auto device = open_host();
  const Stream stream(device);
  const DeviceMemory first(device, 300);
  const DeviceMemory second(device, 300);
  device->fill(first.get(), 7, 300, stream.handle());
  device->copy(second.get(), first.get(), 300, stream.handle());
  device->fill(first.get(), 8, 300, stream.handle());
  stream.synchronize();
  CHECK(device->idle(stream.handle()));
  CHECK_EQ(static_cast<const unsigned char*>(second.get())[299], 7);
  CHECK_EQ(static_cast<const unsigned char*>(first.get())[299], 8);
}

TEST(an_event_tells_when_its_stream_has_come_there) {
  const auto device = open_host();
  const Stream stream(device);
  Event event(device);
  CHECK(event.done());  // never recorded
  const Gate gate;
  gate.close(stream.handle());
  event.record(stream.handle());
  CHECK(!event.done());
  CHECK(!device->idle(stream.handle()));
  gate.open();
  stream.synchronize();
  CHECK(event.done());
}

TEST(a_blocked_stream_waits_for_the_event) {
  const auto device = open_host();
  const Stream first(device);
  const Stream second(device);
  const DeviceMemory memory(device, 1);
  Event event(device);
  const Gate gate;
  gate.close(first.handle());
  device->fill(memory.get(), 1, 1, first.handle());
  event.record(first.handle());
  event.block(second.handle());
  device->fill(memory.get(), 2, 1, second.handle());
  CHECK(!device->idle(second.handle()));
  gate.open();
  second.synchronize();
  CHECK_EQ(*static_cast<const unsigned char*>(memory.get()), 2);
}

TEST(moved_streams_and_events_stay_the_same) {
  const auto device = open_host();
  Stream stream(device);
  StreamHandle handle = stream.handle();
  Stream moved(std::move(stream));
  CHECK_EQ(moved.handle(), handle);
  Stream other(device);
  other = std::move(moved);
  CHECK_EQ(other.handle(), handle);
  Event event(device);
  EventHandle event_handle = event.handle();
  Event other_event(device);
  other_event = std::move(event);
  CHECK_EQ(other_event.handle(), event_handle);
  other_event.record(other.handle());
}

TEST(the_current_device_of_the_thread_is_put_back) {
  const auto device = open_host(2);
  const DeviceTable& table = device->table();
  CHECK_EQ(table.set_device(6), int{kDeviceOk});
  int current = -1;
  {
    const CurrentDevice scope(*device);
    table.current_device(&current);
    CHECK_EQ(current, 2);
  }
  table.current_device(&current);
  CHECK_EQ(current, 6);
  const DeviceMemory memory(device, 10);
  table.current_device(&current);
  CHECK_EQ(current, 6);
  table.set_device(0);
}

TEST(a_thread_can_be_given_to_a_device) {
  const auto device = open_host(2);
  int current = -1;
  std::thread([&] {
    device->adopt_thread();
    {
      const CurrentDevice scope(*device);
    }
    device->table().current_device(&current);
  }).join();
  CHECK_EQ(current, 2);
  device->table().current_device(&current);
  CHECK_EQ(current, 0);  // another thread's affair
}

TEST(a_capture_that_has_failed_is_the_callers_affair) {
  const auto device = open_host();
  const Stream stream(device);
  CHECK_EQ(host().begin_capture(stream.handle(), kCaptureGlobal), int{kDeviceOk});
  CHECK_THROWS(DeviceMemory(device, 100), DeviceError);
  CHECK_THROWS_WITH(device->capture_state(stream.handle()), InvalidArgument,
                    "the stream is in a capture that has failed: ");
  HostGraph graph = nullptr;
  CHECK_EQ(host().end_capture(stream.handle(), &graph), int{kDeviceInvalidCapture});
}

TEST(a_relaxed_thread_allocates_during_a_capture) {
  const auto device = open_host();
  const Stream stream(device);
  std::optional<DeviceMemory> outlived(std::in_place, device, 64);
  CHECK_EQ(host().begin_capture(stream.handle(), kCaptureGlobal), int{kDeviceOk});
  CHECK(device->capture_state(stream.handle()).active);
  {
    const RelaxedCapture relaxed(*device);
    const DeviceMemory memory(device, 100);
    CHECK(memory.get() != nullptr);
  }
  outlived.reset();  // memory may always go
  HostGraph graph = nullptr;
  CHECK_EQ(host().end_capture(stream.handle(), &graph), int{kDeviceOk});
  CHECK_EQ(host().destroy_graph(graph), int{kDeviceOk});
  CHECK(!device->capture_state(stream.handle()).active);
}

TEST(the_mode_of_capture_is_put_back) {
  const auto device = open_host();
  const Stream stream(device);
  {
    const RelaxedCapture relaxed(*device);
  }
  CHECK_EQ(host().begin_capture(stream.handle(), kCaptureGlobal), int{kDeviceOk});
  CHECK_THROWS_WITH(DeviceMemory(device, 100), DeviceError, "while a stream is being captured");
  HostGraph graph = nullptr;
  CHECK_EQ(host().end_capture(stream.handle(), &graph), int{kDeviceInvalidCapture});
}

TEST(threads_share_a_device) {
  const auto device = open_host();
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      const Stream stream(device);
      Event event(device);
      for (int round = 0; round < 50; ++round) {
        const DeviceMemory memory(device, 1000);
        device->fill(memory.get(), number, 1000, stream.handle());
        event.record(stream.handle());
        while (!event.done()) std::this_thread::yield();
        wrong += static_cast<const unsigned char*>(memory.get())[999] != number;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}

// A child has none of the threads: it is told so, and its copies of the owners do nothing.
TEST(a_forked_child_is_refused_rather_than_hung) {
  const auto device = open_host();
  Stream stream(device);
  std::optional<DeviceMemory> memory(std::in_place, device, 100);
  device->fill(memory->get(), 1, 100, stream.handle());
  stream.synchronize();
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(!device->usable());
    CHECK_THROWS_WITH(stream.synchronize(), Closed, "fork");
    CHECK_THROWS_WITH(DeviceMemory(device, 100), Closed, "fork");
    CHECK(device->table().stream_synchronize(stream.handle()) > kVendorStatus);
    CHECK(host().delay(stream.handle(), 1) > kVendorStatus);
    CHECK_THROWS_WITH(open_host(), Unavailable, "fork");
    memory.reset();
    return;  // the runner ends the child
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK(device->usable());
  stream.synchronize();
}

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "multiprocessors_child") {
    return open_host()->properties().multiprocessors;
  }
  return run_all(argc, argv);
}
