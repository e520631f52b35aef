// Shared memory: what it guarantees and what it refuses.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "own_process.h"
#include "rank_processes.h"
#include "windows/available_memory.h"
#include "windows/own_windows.h"
#include "windows/shared_memory.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

// Without instrumentation: a sanitizer's own memory would fault in as well.
__attribute__((no_sanitize("address", "thread", "undefined"))) void touch(
    const SharedMemory& memory) {
  volatile std::byte* const data = memory.data();
  const size_t bytes = memory.bytes();
  for (size_t i = 0; i < bytes; i += 4096) data[i] = std::byte{1};
}

}  // namespace

TEST(memory_is_zeroed_aligned_and_of_fixed_size) {
  const SharedMemory memory = SharedMemory::create(5'000'001, "symmoe:test");
  CHECK_EQ(memory.bytes(), size_t{5'000'001});
  CHECK_EQ(reinterpret_cast<uintptr_t>(memory.data()) % SharedMemory::kAlignment, uintptr_t{0});
  for (size_t i = 0; i < memory.bytes(); ++i) CHECK(memory.data()[i] == std::byte{0});
  CHECK(ftruncate(memory.descriptor(), 1 << 20) != 0);
  CHECK(ftruncate(memory.descriptor(), 1 << 28) != 0);
  CHECK((fcntl(memory.descriptor(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK_THROWS(SharedMemory::create(0, "symmoe:test"), InvalidArgument);
}

TEST(memory_is_present_from_the_start) {
  rusage before{};
  rusage after{};
  const SharedMemory memory = SharedMemory::create(16 << 20, "symmoe:test");
  getrusage(RUSAGE_SELF, &before);
  touch(memory);
  getrusage(RUSAGE_SELF, &after);
  CHECK(after.ru_minflt - before.ru_minflt < 64);  // of 4096 pages
}

TEST(attached_memory_is_the_same_memory) {
  SharedMemory memory = SharedMemory::create(10'000, "symmoe:test");
  const Descriptor descriptor = memory.release_descriptor();
  CHECK_EQ(memory.descriptor(), -1);
  const SharedMemory view =
      SharedMemory::attach(descriptor.get(), 10'000, SharedMemory::Access::kRead);
  CHECK(view.data() != memory.data());
  memory.data()[9'999] = std::byte{42};
  CHECK(view.data()[9'999] == std::byte{42});
  const SharedMemory moved = std::move(memory);
  CHECK(memory.data() == nullptr);
  moved.data()[0] = std::byte{43};
  CHECK(view.data()[0] == std::byte{43});
}

TEST(attach_refuses_what_could_fault_later) {
  const auto attach = [](int descriptor, size_t bytes) {
    SharedMemory::attach(descriptor, bytes, SharedMemory::Access::kRead);
  };
  const Descriptor unsealed(memfd_create("symmoe:test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK_EQ(ftruncate(unsealed.get(), 8192), 0);
  CHECK_THROWS_WITH(attach(unsealed.get(), 8192), SystemError, "not sealed");
  CHECK_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  CHECK_THROWS_WITH(attach(unsealed.get(), 8192), SystemError, "not sealed");
  CHECK_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  attach(unsealed.get(), 8192);
  CHECK_THROWS_WITH(attach(unsealed.get(), 8193), SystemError, "8193");
  CHECK_THROWS(attach(unsealed.get(), 0), SystemError);
  CHECK_THROWS(attach(unsealed.get(), std::numeric_limits<size_t>::max()), SystemError);
  int ends[2];
  CHECK_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Descriptor out(ends[0]);
  const Descriptor in(ends[1]);
  CHECK_THROWS(attach(out.get(), 4096), SystemError);
  CHECK_THROWS(attach(-1, 4096), SystemError);
}

TEST(absurd_sizes_are_out_of_memory_and_take_nothing) {
  const size_t descriptors = open_descriptors();
  const AvailableMemory available = available_memory();
  CHECK(available.bytes > 0);
  for (const size_t bytes : {size_t{1} << 45, size_t{1} << 60, size_t{1} << 63,
                             std::numeric_limits<size_t>::max(), available.bytes}) {
    CHECK_THROWS_WITH(SharedMemory::create(bytes, "symmoe:test"), OutOfMemory,
                      std::to_string(bytes));
  }
  CHECK_EQ(open_descriptors(), descriptors);
  CHECK_EQ(own_maps(), size_t{0});
}

// Threads look windows up, and make some, at the moment of a fork: the child is not left with a
// lock that nobody will ever give back.
TEST(own_windows_can_be_asked_for_in_a_forked_child) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> busy;
  for (int thread = 0; thread < 3; ++thread) {
    busy.emplace_back([&, thread] {
      while (!stop) {
        if (thread == 0) {
          own_windows::registered(SharedMemory::create(4096, "symmoe:test"));
        } else {
          own_windows::contain(&stop);
        }
      }
    });
  }
  const std::shared_ptr<SharedMemory> own =
      own_windows::registered(SharedMemory::create(4096, "symmoe:test"));
  bool all_answered = true;
  for (int round = 0; round < 200 && all_answered; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      _exit(own_windows::contain(own->data()) ? 1 : 0);  // it is not mapped here
    }
    int status = -1;
    waitpid(child, &status, 0);
    all_answered = status == 0;
    all_answered = all_answered && own_windows::contain(own->data());
  }
  stop = true;
  for (std::thread& thread : busy) thread.join();
  CHECK(all_answered);
  CHECK(!own_windows::contain(own->data() + own->bytes()));
}

TEST(no_address_space_is_out_of_memory) {
  const pid_t child = start_process([] {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const rlimit limit{size_t{256} << 20, size_t{256} << 20};
    CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    CHECK_THROWS_WITH(SharedMemory::create(size_t{512} << 20, "symmoe:test"), OutOfMemory,
                      "address space");
#endif
  });
  CHECK_EQ(finish_process(child), 0);
}

int main(int argc, char** argv) { return run_all(argc, argv); }
