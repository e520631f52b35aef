// The copy to a window: every length and alignment, nothing beside it, each byte once.

#include "device_cases.h"

namespace symmoe::device_tests {
namespace {

void check_copy(int64_t bytes, int64_t source_offset, int64_t destination_offset,
                int multiprocessors, std::mt19937& random) {
  const Bytes source(bytes, source_offset);
  for (int64_t i = 0; i < bytes; ++i) source.data()[i] = static_cast<char>(random());
  const GuardedOutput destination(bytes, destination_offset);
  destination.clear();
  emulator::reset_counters();
  {
    Declared declared;
    declared.add(source.data(), bytes, emulator::Permission::kRead);
    declared.add(destination.data(), bytes, emulator::Permission::kWrite);
    const CopyLaunch launch{source.data(), destination.data(), bytes};
    CHECK_EQ(kernels::launch_copy_to_window(launch, multiprocessors, nullptr), 0);
  }
  const std::string what = std::to_string(bytes) + " bytes from " + std::to_string(source_offset) +
                           " to " + std::to_string(destination_offset);
  CHECK_MSG(std::memcmp(source.data(), destination.data(), static_cast<size_t>(bytes)) == 0, what);
  CHECK_MSG(destination.guards_untouched(), what);
  CHECK_EQ(emulator::counters().loaded, static_cast<uint64_t>(bytes));
  CHECK_EQ(emulator::counters().stored, static_cast<uint64_t>(bytes));
}

TEST(copy_any_length_and_alignment) {
  std::mt19937 random(1);
  for (const int64_t bytes : {1, 15, 16, 17, 31, 100, 1000, 4096 + 5}) {
    for (int i = 0; i < 12; ++i) {
      const int64_t destination = random() % 16;
      // Equally far from a boundary, from one of 4 bytes, of 2 bytes, and anything.
      const int64_t apart[] = {0, 4, 2, 1};
      const Schedule schedule(i % 2 == 0 ? 0 : random());
      check_copy(bytes, destination + apart[i % 4], destination, 1 + i % 3, random);
    }
  }
}

TEST(copy_more_than_all_threads_at_once) {
  std::mt19937 random(2);
  check_copy(640'007, 0, 0, 1, random);
  check_copy(80'003, 1, 0, 1, random);
}

TEST(copy_nothing) {
  const CopyLaunch launch{nullptr, nullptr, 0};
  CHECK_EQ(kernels::launch_copy_to_window(launch, 4, nullptr), 0);
}

}  // namespace
}  // namespace symmoe::device_tests

DEVICE_TEST_MAIN()
