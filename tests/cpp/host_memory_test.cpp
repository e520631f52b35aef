// The host back end's memory, made so that mistakes show, and the means of tests: limits, ordered
// failures, counts.

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <vector>

#include "host_backend.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

unsigned char* allocate(size_t bytes) {
  void* memory = nullptr;
  CHECK_EQ(host_table().allocate(&memory, bytes), int{kDeviceOk});
  return static_cast<unsigned char*>(memory);
}

void release(void* memory) { CHECK_EQ(host_table().release(memory), int{kDeviceOk}); }

// Whether touching the address ends a process.
bool is_fatal(volatile unsigned char* address, bool write) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);  // a sanitizer would print a report
    if (write) *address = 1;
    const unsigned char value = *address;
    _exit(value == 0 ? 0 : 0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

}  // namespace

TEST(memory_is_aligned_and_filled) {
  for (const size_t bytes : {size_t{1}, size_t{511}, size_t{512}, size_t{4096}, size_t{100'000}}) {
    unsigned char* memory = allocate(bytes);
    CHECK_EQ(reinterpret_cast<uintptr_t>(memory) % 512, uintptr_t{0});
    for (size_t i = 0; i < bytes; ++i) CHECK_EQ(memory[i], 0xFF);
    std::memset(memory, 0, bytes);
    release(memory);
  }
}

TEST(fresh_memory_is_not_a_number) {
  unsigned char* memory = allocate(64);
  float value = 0;
  std::memcpy(&value, memory, sizeof(value));
  CHECK(value != value);
  release(memory);
}

TEST(touching_released_memory_is_fatal) {
  unsigned char* memory = allocate(3000);
  CHECK(!is_fatal(memory, true));
  release(memory);
  CHECK(is_fatal(memory, false));
  // Not even when much else was allocated meanwhile.
  std::vector<unsigned char*> others;
  for (int i = 0; i < 100; ++i) others.push_back(allocate(3000));
  for (unsigned char* other : others) {
    CHECK(other != memory);
    release(other);
  }
  CHECK(is_fatal(memory, true));
}

TEST(touching_what_lies_behind_is_fatal) {
  unsigned char* memory = allocate(1024);
  CHECK(!is_fatal(memory + 1023, true));
  CHECK(is_fatal(memory + 1024, false));
  release(memory);
}

TEST(only_the_start_of_live_memory_can_be_released) {
  unsigned char* memory = allocate(1024);
  CHECK(host_table().release(memory + 512) > kVendorStatus);
  CHECK(host_table().release_pinned(memory) > kVendorStatus);
  release(memory);
  CHECK(host_table().release(memory) > kVendorStatus);
  release(nullptr);
}

TEST(live_bytes_count_both_kinds) {
  const size_t before = host().live_bytes();
  unsigned char* memory = allocate(100);
  void* pinned = nullptr;
  CHECK_EQ(host_table().allocate_pinned(&pinned, 11), int{kDeviceOk});
  CHECK_EQ(host().live_bytes(), before + 111);
  release(memory);
  CHECK_EQ(host_table().release_pinned(pinned), int{kDeviceOk});
  CHECK_EQ(host().live_bytes(), before);
}

TEST(a_limit_leaves_everything_as_it_was) {
  const size_t before = host().live_bytes();
  host().limit_memory(before + 1000);
  void* memory = nullptr;
  CHECK_EQ(host_table().allocate(&memory, 1001), int{kDeviceOutOfMemory});
  CHECK(memory == nullptr);
  CHECK(std::strstr(host_table().error_text(kDeviceOutOfMemory), "1001 bytes wanted") != nullptr);
  CHECK_EQ(host().live_bytes(), before);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  CHECK_EQ(host_table().memory(&free_bytes, &total_bytes), int{kDeviceOk});
  CHECK_EQ(free_bytes, size_t{1000});
  CHECK_EQ(total_bytes, before + 1000);
  release(allocate(1000));
  host().limit_memory(0);
  release(allocate(2000));
}

// Memory that another library made counts as if it came from here.
TEST(memory_of_others_counts_within_the_limit) {
  const size_t before = host().live_bytes();
  host().limit_memory(before + 1000);
  CHECK_EQ(host().account(600), int{kDeviceOk});
  CHECK_EQ(host().live_bytes(), before + 600);
  CHECK_EQ(host().account(401), int{kDeviceOutOfMemory});
  void* memory = nullptr;
  CHECK_EQ(host_table().allocate(&memory, 401), int{kDeviceOutOfMemory});
  release(allocate(400));
  CHECK_EQ(host().account(-600), int{kDeviceOk});
  CHECK_EQ(host().live_bytes(), before);
  host().limit_memory(0);
}

TEST(absurd_sizes_are_out_of_memory) {
  void* memory = nullptr;
  CHECK_EQ(host_table().allocate(&memory, SIZE_MAX), int{kDeviceOutOfMemory});
  CHECK_EQ(host_table().allocate(&memory, SIZE_MAX / 2), int{kDeviceOutOfMemory});
}

TEST(the_nth_call_fails_by_order) {
  host().fail("allocate", 3, kVendorStatus + 700);
  release(allocate(8));
  release(allocate(8));
  void* memory = nullptr;
  CHECK_EQ(host_table().allocate(&memory, 8), kVendorStatus + 700);
  CHECK_EQ(std::string(host_table().error_text(kVendorStatus + 700)), "allocate: failure by order");
  release(allocate(8));

  host().fail("event_create", 1, kDeviceOutOfMemory);
  host().fail("stream_create", 1, kDeviceOutOfMemory);
  StreamHandle stream = nullptr;
  CHECK_EQ(host_table().stream_create(&stream), int{kDeviceOutOfMemory});
  host().fail("", 0, 0);
  EventHandle event = nullptr;
  CHECK_EQ(host_table().event_create(&event), int{kDeviceOk});
  CHECK_EQ(host_table().event_destroy(event), int{kDeviceOk});
}

TEST(work_is_counted_when_it_is_queued) {
  unsigned char* memory = allocate(64);
  const uint64_t copies = host().count("copy");
  const uint64_t fills = host().count("fill");
  CHECK_EQ(host().count("no such function"), uint64_t{0});
  const Gate gate;
  gate.close(nullptr);
  CHECK_EQ(host_table().fill(memory, 1, 32, nullptr), int{kDeviceOk});
  CHECK_EQ(host_table().copy(memory + 32, memory, 32, nullptr), int{kDeviceOk});
  CHECK_EQ(host_table().copy(memory, nullptr, 0, nullptr), int{kDeviceOk});  // nothing to do
  host().fail("copy", 1, kVendorStatus + 1);
  CHECK_EQ(host_table().copy(memory + 32, memory, 32, nullptr), kVendorStatus + 1);
  CHECK_EQ(host().count("copy"), copies + 1);
  CHECK_EQ(host().count("fill"), fills + 1);
  gate.open();
  CHECK_EQ(host().synchronize(), int{kDeviceOk});
  CHECK_EQ(memory[63], 1);
  release(memory);
}

int main(int argc, char** argv) { return run_all(argc, argv); }
