// The host back end's memory with descriptors, made so that mistakes show.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "host_backend.h"
#include "own_process.h"
#include "runtime/shared_device_memory.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

constexpr size_t kBytes = 5000;
constexpr size_t kGranule = size_t{2} << 20;

unsigned char* allocate(size_t bytes, int* descriptor) {
  void* memory = nullptr;
  CHECK_EQ(host_table().allocate_shared(&memory, bytes, descriptor), int{kDeviceOk});
  return static_cast<unsigned char*>(memory);
}

void refuse(int status, const char* words) {
  CHECK(status > kVendorStatus);
  const std::string text = host_table().error_text(status);
  CHECK_MSG(text.find(words) != std::string::npos, text);
}

// Whether writing to the address ends a process.
bool is_fatal(volatile unsigned char* address) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);  // a sanitizer would print a report
    *address = 1;
    _exit(0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

}  // namespace

TEST(fresh_memory_is_not_a_number_and_ends_where_it_should) {
  int descriptor = -1;
  unsigned char* const memory = allocate(kBytes, &descriptor);
  CHECK_EQ(fcntl(descriptor, F_GETFD), FD_CLOEXEC);
  for (size_t i = 0; i < kGranule; ++i) CHECK_EQ(memory[i], 0xFF);
  CHECK(is_fatal(memory + kGranule));
  CHECK_EQ(host().live_bytes(), kGranule);
  close(descriptor);
  CHECK_EQ(host_table().release_shared(memory, kBytes), int{kDeviceOk});
  CHECK(is_fatal(memory));
  CHECK_EQ(host().live_bytes(), size_t{0});
  CHECK_EQ(own_maps(), size_t{0});
}

TEST(what_is_mapped_in_the_same_process_stays_until_the_last_gives_it_back) {
  int descriptor = -1;
  unsigned char* const memory = allocate(kBytes, &descriptor);
  void* again = nullptr;
  CHECK_EQ(host_table().map_shared(&again, descriptor, kBytes), int{kDeviceOk});
  CHECK(again == memory);
  CHECK_EQ(host().live_bytes(), kGranule);
  CHECK_EQ(host_table().release_shared(memory, kBytes), int{kDeviceOk});
  memory[0] = 1;
  CHECK_EQ(host_table().release_shared(memory, kBytes), int{kDeviceOk});
  CHECK(is_fatal(memory));
  close(descriptor);
}

TEST(misuse_is_refused) {
  int descriptor = -1;
  void* const memory = allocate(kBytes, &descriptor);
  void* mapped = nullptr;
  refuse(host_table().map_shared(&mapped, descriptor, kGranule + 1), "has 2097152 bytes, not 4194");
  refuse(host_table().map_shared(&mapped, -1, kBytes), "map_shared: fstat");
  refuse(host_table().release_shared(memory, kGranule + 1), "has 2097152 bytes, not 4194304");
  refuse(host_table().release_shared(&mapped, kBytes), "not the start of live shared memory");
  CHECK_EQ(host_table().release_shared(memory, kBytes), int{kDeviceOk});
  refuse(host_table().release_shared(memory, kBytes), "not the start of live shared memory");
  void* none = nullptr;
  int no_descriptor = 0;
  refuse(host_table().allocate_shared(&none, 0, &no_descriptor), "0 bytes");
  CHECK_EQ(no_descriptor, -1);
  host().limit_memory(kGranule - 1);
  CHECK_EQ(host_table().allocate_shared(&none, 1, &no_descriptor), int{kDeviceOutOfMemory});
  host().limit_memory(0);
  close(descriptor);
  CHECK_EQ(host().live_bytes(), size_t{0});
}

TEST(it_counts_as_an_allocation_in_a_capture) {
  const auto device = open_host();
  const Stream stream(device);
  int descriptor = -1;
  void* const memory = allocate(kBytes, &descriptor);
  CHECK_EQ(host().begin_capture(stream.handle(), kCaptureGlobal), int{kDeviceOk});
  void* none = nullptr;
  int no_descriptor = -1;
  CHECK_EQ(host_table().allocate_shared(&none, 1, &no_descriptor), int{kDeviceInvalidCapture});
  HostGraph graph = nullptr;
  CHECK(host().end_capture(stream.handle(), &graph) != kDeviceOk);  // it was disturbed
  CHECK_EQ(host().begin_capture(stream.handle(), kCaptureGlobal), int{kDeviceOk});
  {
    // The owner's calls are relaxed.
    int made = -1;
    SharedDeviceMemory owner = SharedDeviceMemory::create(device, kBytes, &made);
    const SharedDeviceMemory other = SharedDeviceMemory::attach(device, descriptor, kBytes);
    CHECK(other.get() == memory);
    const SharedDeviceMemory moved = std::move(owner);
    CHECK(owner.get() == nullptr);
    CHECK(moved.get() != nullptr);
    close(made);
  }
  CHECK_EQ(host().end_capture(stream.handle(), &graph), int{kDeviceOk});
  CHECK_EQ(host().destroy_graph(graph), int{kDeviceOk});
  CHECK_EQ(host_table().release_shared(memory, kBytes), int{kDeviceOk});
  close(descriptor);
  CHECK_EQ(host().live_bytes(), size_t{0});
}

TEST(devices_of_one_host_have_places_and_reach_each_other) {
  const auto first = open_host(0);
  const auto second = open_host(1);
  CHECK(std::string(first->properties().bus_id) != second->properties().bus_id);
  CHECK_EQ(first->shared_refusal(), "");
  CHECK_EQ(first->shared_refusal(second->properties().bus_id), "");
  host().fail("shared_refusal", 1, kVendorStatus + 1);
  CHECK_THROWS_WITH(first->shared_refusal(), DeviceError, "failure by order");
}

int main(int argc, char** argv) { return run_all(argc, argv); }
