// The emulator itself: what a block's threads see of each other, schedules, blocks that wait for
// each other, launches that run later, the number formats.

#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "device_cases.h"
#include "kernels/device/dev.h"

namespace symmoe::device_tests {
namespace {

namespace dev = kernels::SYMMOE_PLATFORM::dev;

struct Numbers {
  int32_t value[96];
};

// Each thread reads what the thread at the other end wrote.
__global__ void reverse(int32_t* output) {
  SYMMOE_SHARED(Numbers, numbers);
  const unsigned thread = dev::thread();
  numbers.value[thread] = static_cast<int32_t>(thread + dev::block() * dev::threads());
  dev::sync_block();
  const unsigned place = dev::block() * dev::threads() + thread;
  dev::store(output + place, numbers.value[dev::threads() - 1 - thread]);
}

TEST(emulator_shared_memory_and_barrier) {
  for (const uint64_t seed : {0, 1, 2}) {
    const Schedule schedule(seed);
    std::vector<int32_t> output(3 * 96);
    CHECK_EQ(dev::launch(reverse, 3, 96, nullptr, output.data()), 0);
    for (int i = 0; i < 3 * 96; ++i) CHECK_EQ(output[i], i / 96 * 96 + 95 - i % 96);
  }
}

__global__ void look_at_new_memory(int32_t* output) {
  SYMMOE_SHARED(Numbers, numbers);
  dev::store(output + dev::block(), numbers.value[1]);
  numbers.value[1] = 7;
}

TEST(emulator_shared_memory_begins_undefined_in_each_block) {
  int32_t output[3] = {};
  dev::launch(look_at_new_memory, 3, 1, nullptr, output);
  for (const int32_t value : output) CHECK_EQ(value, -1);
}

// A butterfly sum, and everybody's lane 5; the last warp is not full.
__global__ void sum_of_warp(int32_t* sums, int32_t* of_lane_5) {
  const unsigned thread = dev::thread();
  auto sum = static_cast<int32_t>(thread);
  if (thread < 64) {
    for (unsigned mask = 16; mask > 0; mask /= 2) sum += emulator::shuffle_xor(sum, mask);
  }
  dev::store(sums + thread, sum);
  dev::store(of_lane_5 + thread, static_cast<int32_t>(emulator::shuffle(uint64_t{thread}, 5)));
}

TEST(emulator_shuffles) {
  for (const uint64_t seed : {0, 1, 2}) {
    const Schedule schedule(seed);
    int32_t sums[80];
    int32_t of_lane_5[80];
    dev::launch(sum_of_warp, 1, 80, nullptr, sums, of_lane_5);
    for (int i = 0; i < 64; ++i) CHECK_EQ(sums[i], i / 32 * 1024 + 496);
    for (int i = 0; i < 80; ++i) CHECK_EQ(of_lane_5[i], i / 32 * 32 + 5);
  }
}

// Without a race detector, the order shows in what a shared counter gives each thread.
__global__ void take_numbers(int32_t* next, int32_t* output) {
  dev::store(output + dev::thread(), __atomic_fetch_add(next, 1, __ATOMIC_RELAXED));
}

TEST(emulator_seeds_give_different_orders_and_the_same_again) {
  std::set<std::vector<int32_t>> orders;
  for (const uint64_t seed : {0, 1, 2, 3, 1, 2}) {
    const Schedule schedule(seed);
    int32_t next = 0;
    std::vector<int32_t> order(32);
    dev::launch(take_numbers, 1, 32, nullptr, &next, order.data());
    orders.insert(order);
  }
  CHECK_EQ(orders.size(), size_t{4});
}

// Every block waits for the next one's flag: only blocks that run at the same time get through.
__global__ void wait_for_next_block(uint32_t* flags) {
  if (dev::thread() == 0) {
    dev::publish(flags + dev::block(), 1);
    const uint32_t* const other = flags + (dev::block() + 1) % dev::blocks();
    while (__atomic_load_n(other, __ATOMIC_ACQUIRE) == 0) emulator::spin();
  }
  dev::sync_block();
}

TEST(emulator_co_resident_blocks_wait_for_each_other) {
  uint32_t flags[4] = {};
  emulator::options().co_resident = true;
  dev::launch(wait_for_next_block, 4, 64, nullptr, flags);
  emulator::options().co_resident = false;
  for (const uint32_t flag : flags) CHECK_EQ(flag, 1u);
}

std::vector<std::function<void()>> queue;
int put_off(void* stream, std::function<void()> work) {
  if (stream == nullptr) return 9;
  queue.push_back(std::move(work));
  return 0;
}

TEST(emulator_launches_go_where_the_hook_says) {
  emulator::set_enqueue(put_off);
  std::vector<int32_t> output(96);
  int stream;
  CHECK_EQ(dev::launch(reverse, 1, 96, nullptr, output.data()), 9);
  CHECK_EQ(dev::launch(reverse, 1, 96, &stream, output.data()), 0);
  emulator::set_enqueue(nullptr);
  CHECK_EQ(output[0], 0);
  for (int replay = 0; replay < 2; ++replay) {
    output.assign(96, 0);
    queue.at(0)();
    CHECK_EQ(output[0], 95);
  }
  queue.clear();
}

TEST(emulator_float16_of_every_number) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float want = reference::decode(DType::kFloat16, reinterpret_cast<const char*>(&half));
    const float got = emulator::float_of_float16(half);
    CHECK(std::isnan(want) ? std::isnan(got) : std::memcmp(&want, &got, sizeof got) == 0);
    if (!std::isnan(want)) CHECK_EQ(emulator::float16_of_float(got), half);
  }
}

TEST(emulator_rounds_like_the_reference) {
  std::mt19937 random(1);
  for (int i = 0; i < 200'000; ++i) {
    const uint32_t bits = random();
    float value;
    std::memcpy(&value, &bits, sizeof value);
    // Half of them in float16's range, where half-way cases are frequent.
    if (i % 2 == 0)
      value = std::ldexp(static_cast<float>(bits >> 16 | 1) * 0.5f, -static_cast<int>(bits % 48));
    char want[2];
    reference::encode(DType::kFloat16, value, want);
    const uint16_t half = emulator::float16_of_float(value);
    CHECK_MSG(std::isnan(value) || std::memcmp(want, &half, 2) == 0, std::to_string(value));
    reference::encode(DType::kBFloat16, value, want);
    const uint16_t brain = emulator::bfloat16_of_float(value);
    CHECK_MSG(std::memcmp(want, &brain, 2) == 0, std::to_string(value));
  }
}

}  // namespace
}  // namespace symmoe::device_tests

DEVICE_TEST_MAIN()
