// tsan
// The memory that a pool promises to stay below, over many sequences of requests, and its use by
// several threads at once.

#include <algorithm>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "pool_source.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

constexpr size_t kGranule = 64;

// Largest request of each slot.
using HighWater = std::map<std::pair<int, int>, size_t>;

size_t sum(const HighWater& high) {
  size_t bytes = 0;
  for (const auto& [slot, most] : high) bytes += most;
  return bytes;
}

size_t draw_size(std::mt19937& random, int habit) {
  switch (habit) {
    case 0:  // creeping up, the worst for geometric growth
      return 1 + random() % 40;
    case 1:
      return 1 + random() % 100'000;
    case 2:
      return size_t{1} << random() % 20;
    default:
      return 1 + (size_t{1} << random() % 20);
  }
}

}  // namespace

// Nothing pinned or viewed: at any moment at most 4x the high-water mark, at rest 2x, plus what
// rounding to granules costs.
TEST(memory_stays_within_its_bounds) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    PoolConfig config{.granularity = kGranule, .max_buffer_bytes = 0};
    if (seed % 5 == 1) config.max_buffer_bytes = 1 + random() % 200'000;
    TestPool test(config);
    test.source.with_memory = false;
    // How readily peers finish reading: always, sometimes, never.
    const uint32_t slowness = seed % 3;
    test.settled = [&](const Buffer&) {
      return slowness == 0 || (slowness == 1 && random() % 4 == 0);
    };

    HighWater high;
    std::map<std::pair<int, int>, size_t> creeping;
    for (int step = 0; step < 200; ++step) {
      const int lane = static_cast<int>(random() % 2);
      const int use = static_cast<int>(random() % 2);
      const auto key = std::pair(lane, use);
      const int habit = static_cast<int>(seed / 3 % 4);
      size_t bytes = draw_size(random, habit);
      if (habit == 0) bytes = creeping[key] += bytes;
      if (test.pool.refuses(bytes)) {
        CHECK(config.max_buffer_bytes != 0 && bytes > config.max_buffer_bytes);
        continue;
      }
      const Slot which = slot(Role::kCombine, lane, static_cast<Use>(use));
      const size_t got = test.pool.get(which, bytes)->window.bytes;
      CHECK(got >= bytes);
      CHECK(config.max_buffer_bytes == 0 || got <= config.max_buffer_bytes);
      high[key] = std::max(high[key], bytes);
      if (random() % 10 == 0) test.pool.trim();

      const PoolStats stats = test.pool.stats();
      CHECK_EQ(stats.live_bytes + stats.retired_bytes, test.source.held_bytes);
      CHECK_EQ(stats.buffers >= high.size(), true);
      CHECK_MSG(stats.live_bytes <= 2 * sum(high) + kGranule * high.size(),
                "seed " + std::to_string(seed) + " step " + std::to_string(step));
      CHECK_MSG(test.source.held_bytes <= 4 * sum(high) + 2 * kGranule * high.size(),
                "seed " + std::to_string(seed) + " step " + std::to_string(step) + ": " +
                    std::to_string(test.source.held_bytes) + " for " + std::to_string(sum(high)));
      CHECK(stats.peak_bytes >= test.source.held_bytes);
    }
    test.settled = [](const Buffer&) { return true; };
    test.pool.trim();
    CHECK_EQ(test.pool.stats().retired_bytes, size_t{0});
    CHECK_EQ(test.pool.stats().live_bytes, test.source.held_bytes);
  }
}

// What a view or a graph holds stays in place and keeps its values, whatever else happens.
TEST(held_buffers_survive_any_sequence) {
  struct Held {
    std::shared_ptr<Buffer> view;  // null: pinned instead
    std::byte* base;
    size_t bytes;
    std::byte mark;
  };
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    TestPool test({.granularity = kGranule, .max_buffer_bytes = 0});
    std::vector<Held> held;
    for (int step = 0; step < 120; ++step) {
      const int lane = static_cast<int>(random() % 3);
      const auto buffer = test.pool.get(slot(Role::kCombine, lane), 1 + random() % 3000);
      const auto known = std::find_if(held.begin(), held.end(), [&](const Held& each) {
        return each.base == buffer->window.base;
      });
      if (known == held.end() && random() % 3 == 0) {
        const bool pin = random() % 2 == 0;
        if (pin) buffer->pinned = true;
        const auto mark = static_cast<std::byte>(random());
        std::memset(buffer->window.base, static_cast<int>(mark), buffer->window.bytes);
        held.push_back({pin ? nullptr : buffer, buffer->window.base, buffer->window.bytes, mark});
      }
      if (random() % 4 == 0) test.pool.trim();
      if (!held.empty() && random() % 8 == 0) {
        const size_t victim = random() % held.size();
        if (held[victim].view != nullptr) {
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(victim));
        }
      }
      for (const Held& each : held) {
        size_t offset = 0;
        const auto found = test.pool.find(each.base, &offset);
        CHECK(found != nullptr);
        CHECK_EQ(found->window.bytes, each.bytes);
        CHECK(each.base[0] == each.mark && each.base[each.bytes - 1] == each.mark);
      }
    }
  }
}

// One thread per lane, as the engine uses it, and one that asks for statistics.
TEST(lanes_may_be_used_by_threads_of_their_own) {
  TestPool test({.granularity = kGranule, .max_buffer_bytes = 0});
  CHECK(run_threads(5, [&](int thread) {
    std::mt19937 random(static_cast<uint32_t>(thread));
    for (int step = 0; step < 1500; ++step) {
      if (thread == 4) {
        const PoolStats stats = test.pool.stats();
        CHECK(stats.peak_bytes >= stats.live_bytes);
        continue;
      }
      const auto buffer = test.pool.get(slot(Role::kDispatch, thread), 1 + random() % (step + 1));
      if (random() % 16 == 0) buffer->pinned = true;
      buffer->last_epoch = static_cast<uint32_t>(step);
      std::memset(buffer->window.base, thread, buffer->window.bytes);
      size_t offset = 1;
      CHECK(test.pool.find(buffer->window.base, &offset) == buffer);
      if (random() % 16 == 0) test.pool.trim();
      CHECK(buffer->window.base[0] == static_cast<std::byte>(thread));
    }
  }));
  test.pool.unpin_all();
  test.pool.trim();
  CHECK_EQ(test.pool.stats().buffers, size_t{4});
}

int main(int argc, char** argv) { return run_all(argc, argv); }
