// tsan
// The buffers of one rank: growth, limits, retention, statistics.

#include "pool/pool.h"

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "pool_source.h"

using namespace symmoe;
using namespace symmoe::check;

TEST(growth_is_geometric_and_rounded) {
  TestPool test;
  CHECK(test.pool.current(slot()) == nullptr);
  CHECK_EQ(test.pool.get(slot(), 1)->window.bytes, size_t{100});
  CHECK_EQ(test.pool.get(slot(), 100)->window.bytes, size_t{100});
  CHECK_EQ(test.pool.get(slot(), 101)->window.bytes, size_t{200});
  CHECK_EQ(test.pool.get(slot(), 201)->window.bytes, size_t{400});
  CHECK_EQ(test.pool.get(slot(), 1650)->window.bytes, size_t{1700});
  CHECK_EQ(test.pool.get(slot(), 5)->window.bytes, size_t{1700});
  CHECK_EQ(test.pool.stats().growths, size_t{3});
}

TEST(the_same_buffer_serves_all_sizes_it_can_hold) {
  TestPool test;
  const auto first = test.pool.get(slot(), 300);
  CHECK(test.pool.get(slot(), 7) == first);
  CHECK(test.pool.get(slot(), 300) == first);
  CHECK(test.pool.current(slot()) == first);
  CHECK(test.pool.get(slot(), 301) != first);
  CHECK(first->retired);
  CHECK(test.pool.current(slot()) != first);
}

TEST(the_cap_binds_the_headroom_and_refuses_beyond) {
  TestPool test({.granularity = 100, .max_buffer_bytes = 250});
  CHECK(!test.pool.refuses(250));
  const std::optional<std::string> reason = test.pool.refuses(251);
  CHECK(reason.has_value());
  CHECK_MSG(*reason == "251 bytes exceed max_buffer_bytes=250", *reason);
  CHECK_EQ(test.pool.get(slot(), 150)->window.bytes, size_t{200});
  CHECK_EQ(test.pool.get(slot(), 220)->window.bytes, size_t{250});
  CHECK_EQ(test.pool.get(slot(), 250)->window.bytes, size_t{250});
}

TEST(a_limit_refuses_beyond_and_binds_the_headroom) {
  TestPool test;
  test.pool.get(slot(), 200);
  test.pool.limit(333, "rank 3: no memory");
  CHECK(!test.pool.refuses(333));
  CHECK_EQ(test.pool.refuses(334).value_or(""), "rank 3: no memory");
  CHECK_EQ(test.pool.get(slot(), 201)->window.bytes, size_t{333});
}

// Even one byte could not be had: that is a limit too, not the absence of one.
TEST(a_limit_of_nothing_refuses_everything) {
  TestPool test;
  test.pool.limit(0, "rank 3: no memory");
  CHECK_EQ(test.pool.refuses(1).value_or(""), "rank 3: no memory");
}

TEST(absurd_sizes_are_passed_on_as_they_are) {
  TestPool test;
  test.source.with_memory = false;
  test.pool.get(slot(), 100);
  const auto buffer = test.pool.get(slot(), SIZE_MAX - 10);
  CHECK(buffer->window.bytes >= SIZE_MAX - 10);
}

TEST(slots_never_share_memory) {
  TestPool test;
  struct Range {
    const std::byte* begin;
    const std::byte* end;
  };
  std::vector<Range> ranges;
  for (int role = 0; role < kRoles; ++role) {
    for (int lane = 0; lane < kMaxLanes; ++lane) {
      for (int use = 0; use < kUses; ++use) {
        const Slot which = slot(static_cast<Role>(role), lane, static_cast<Use>(use));
        const Window& window = test.pool.get(which, 128)->window;
        for (const Range& other : ranges) {
          CHECK(window.base >= other.end || window.base + window.bytes <= other.begin);
        }
        ranges.push_back({window.base, window.base + window.bytes});
        const auto again = test.pool.current(which);
        CHECK(again->slot.role == which.role && again->slot.lane == lane &&
              again->slot.use == which.use);
      }
    }
  }
  CHECK_EQ(test.pool.stats().buffers, size_t{kRoles} * kMaxLanes * kUses);
}

TEST(find_and_overlaps_know_every_byte) {
  TestPool test;
  const auto first = test.pool.get(slot(), 100);
  const auto second = test.pool.get(slot(Role::kDispatch, 3), 300);
  size_t offset = 99;
  for (const auto& buffer : {first, second}) {
    const std::byte* const begin = buffer->window.base;
    const size_t bytes = buffer->window.bytes;
    CHECK(test.pool.find(begin, &offset) == buffer);
    CHECK_EQ(offset, size_t{0});
    CHECK(test.pool.find(begin + bytes - 1, &offset) == buffer);
    CHECK_EQ(offset, bytes - 1);
    CHECK(test.pool.find(begin + bytes, &offset) != buffer);
    CHECK(test.pool.find(begin - 1, &offset) != buffer);
    CHECK(test.pool.overlaps(begin, 1));
    CHECK(test.pool.overlaps(begin + bytes - 1, 1));
    CHECK(test.pool.overlaps(begin - 1, 2));
    CHECK(test.pool.overlaps(begin - 1, bytes + 2));
  }
  std::byte elsewhere[16];
  CHECK(test.pool.find(elsewhere, &offset) == nullptr);
  CHECK(!test.pool.overlaps(elsewhere, sizeof(elsewhere)));
}

TEST(an_outgrown_buffer_is_still_found_while_it_is_held) {
  TestPool test;
  auto old = test.pool.get(slot(), 100);
  test.pool.get(slot(), 500);
  test.pool.trim();
  size_t offset = 0;
  CHECK(test.pool.find(old->window.base + 5, &offset) == old);
  const std::byte* const base = old->window.base;
  old.reset();
  test.pool.trim();
  CHECK(test.pool.find(base, &offset) == nullptr);
  CHECK(!test.pool.overlaps(base, 100));
}

TEST(what_is_needed_is_never_dropped) {
  TestPool test;
  bool settled = false;
  test.settled = [&](const Buffer& buffer) { return buffer.slot.lane != 2 || settled; };

  auto view = test.pool.get(slot(Role::kCombine, 0), 100);
  test.pool.get(slot(Role::kCombine, 1), 100)->pinned = true;
  test.pool.get(slot(Role::kCombine, 2), 100);
  for (int lane = 0; lane < 3; ++lane) test.pool.get(slot(Role::kCombine, lane), 1000);
  std::memset(view->window.base, 1, view->window.bytes);

  test.pool.trim();
  CHECK(test.source.dropped.empty());
  settled = true;
  test.pool.trim();
  CHECK(test.source.dropped == std::vector<uint32_t>({3}));
  view.reset();
  test.pool.trim();
  CHECK(test.source.dropped == std::vector<uint32_t>({3, 1}));
  test.pool.unpin_all();
  test.pool.trim();
  CHECK(test.source.dropped == std::vector<uint32_t>({3, 1, 2}));
  // Current buffers stay.
  CHECK_EQ(test.pool.stats().buffers, size_t{3});
}

TEST(drops_come_in_ordinal_order) {
  TestPool test;
  std::vector<std::shared_ptr<Buffer>> views;
  for (const size_t bytes : {100, 300, 700, 1500, 3100}) {
    for (const int lane : {5, 1, 3})
      views.push_back(test.pool.get(slot(Role::kDispatch, lane), bytes));
  }
  while (!views.empty()) views.pop_back();  // the newest first
  test.pool.trim();
  CHECK_EQ(test.source.dropped.size(), size_t{12});
  for (uint32_t i = 0; i < 12; ++i) CHECK_EQ(test.source.dropped[i], i + 1);
}

TEST(growth_gives_back_what_nobody_needs) {
  TestPool test;
  test.pool.get(slot(), 100);
  test.pool.get(slot(), 101);
  CHECK(test.source.dropped.empty());  // peers still read the first while the second is made
  test.pool.get(slot(), 201);
  CHECK(test.source.dropped == std::vector<uint32_t>({1}));
}

TEST(memory_lives_as_long_as_its_last_view) {
  std::shared_ptr<Buffer> view;
  {
    TestPool test;
    view = test.pool.get(slot(), 100);
  }
  std::memset(view->window.base, 3, view->window.bytes);
  CHECK(view->window.base[99] == std::byte{3});
}

TEST(no_memory_leaves_everything_as_it_was) {
  TestPool test;
  test.source.fail_next = true;
  CHECK_THROWS(test.pool.get(slot(), 10), OutOfMemory);
  CHECK(test.pool.current(slot()) == nullptr);
  CHECK_EQ(test.pool.stats().buffers, size_t{0});

  const auto buffer = test.pool.get(slot(), 10);
  const PoolStats before = test.pool.stats();
  test.source.fail_next = true;
  CHECK_THROWS(test.pool.get(slot(), 1000), OutOfMemory);
  CHECK(test.pool.current(slot()) == buffer);
  CHECK(!buffer->retired);
  const PoolStats after = test.pool.stats();
  CHECK_EQ(after.live_bytes, before.live_bytes);
  CHECK_EQ(after.retired_bytes, size_t{0});
  CHECK_EQ(after.peak_bytes, before.peak_bytes);
  CHECK_EQ(after.growths, size_t{0});
  CHECK(test.pool.get(slot(), 10) == buffer);
}

TEST(a_growth_is_undone) {
  TestPool test;
  const auto before = test.pool.get(slot(), 100);
  auto after = test.pool.get(slot(), 500);
  test.pool.revert(std::move(after), before);
  CHECK(test.pool.current(slot()) == before);
  CHECK(!before->retired);
  CHECK(test.source.dropped == std::vector<uint32_t>({2}));
  CHECK_EQ(test.pool.stats().growths, size_t{0});
  CHECK_EQ(test.pool.stats().live_bytes, size_t{100});

  test.pool.revert(test.pool.get(slot(Role::kDispatch), 100), nullptr);
  CHECK(test.pool.current(slot(Role::kDispatch)) == nullptr);
  test.pool.revert(before, before);  // there was no growth
  CHECK(test.pool.current(slot()) == before);
  CHECK_EQ(test.pool.stats().buffers, size_t{1});
}

// Somebody has found the new buffer meanwhile: its memory is theirs until they let go.
TEST(an_undone_growth_that_is_held_is_retired) {
  TestPool test;
  const auto before = test.pool.get(slot(), 100);
  auto view = test.pool.get(slot(), 500);
  test.pool.revert(view, before);
  CHECK(test.pool.current(slot()) == before);
  CHECK(view->retired);
  CHECK(test.source.dropped.empty());
  CHECK_EQ(test.pool.stats().view_bytes, size_t{500});
  std::memset(view->window.base, 1, view->window.bytes);
  size_t offset = 0;
  CHECK(test.pool.find(view->window.base, &offset) == view);
  test.pool.trim();
  CHECK(test.source.dropped.empty());
  view.reset();
  test.pool.trim();
  CHECK(test.source.dropped == std::vector<uint32_t>({2}));
}

// Windows take long to make and to announce; nobody who only asks waits for that.
TEST(queries_answer_while_windows_are_made_and_dropped) {
  TestPool test;
  const auto other = test.pool.get(slot(Role::kDispatch), 100);
  std::atomic<int> answered = 0;
  std::vector<std::thread> asking;
  int busy = 0;
  test.source.while_busy = [&] {
    asking.emplace_back([&] {
      size_t offset = 0;
      CHECK(test.pool.find(other->window.base, &offset) == other);
      CHECK(!test.pool.overlaps(other->window.base + other->window.bytes, 1));
      CHECK(test.pool.current(slot(Role::kDispatch)) == other);
      CHECK(!test.pool.refuses(5));
      CHECK_EQ(test.pool.stats().pinned_bytes, size_t{0});
      ++answered;
    });
    ++busy;
    for (const int64_t end = now_ns() + 20'000'000'000; answered < busy && now_ns() < end;) {
      std::this_thread::yield();
    }
  };
  const int64_t begin = now_ns();
  test.pool.get(slot(), 100);
  test.pool.get(slot(), 200);
  test.pool.trim();
  test.pool.revert(test.pool.get(slot(Role::kCombine, 1), 100), nullptr);
  for (std::thread& each : asking) each.join();
  CHECK_EQ(busy, 5);
  CHECK(now_ns() - begin < 20'000'000'000);
}

// Two slots grow at the same time; whichever ends first, the pool knows their windows in order.
TEST(slots_grow_side_by_side) {
  TestPool test;
  std::atomic<int> inside = 0;
  test.source.while_busy = [&] {
    ++inside;
    for (const int64_t end = now_ns() + 20'000'000'000; inside < 2 && now_ns() < end;) {
      std::this_thread::yield();
    }
  };
  const int64_t begin = now_ns();
  std::array<std::shared_ptr<Buffer>, 2> views;
  CHECK(run_threads(2, [&](int lane) {
    auto& view = views[static_cast<size_t>(lane)];
    view = test.pool.get(slot(Role::kCombine, lane), 100);
    CHECK(test.pool.current(slot(Role::kCombine, lane)) == view);
  }));
  CHECK(now_ns() - begin < 20'000'000'000);
  CHECK_EQ(test.pool.stats().live_bytes, size_t{200});
  for (const int lane : {0, 1}) test.pool.get(slot(Role::kCombine, lane), 1000);
  views = {};
  test.pool.trim();
  CHECK(test.source.dropped == std::vector<uint32_t>({1, 2}));
}

TEST(statistics_are_exact) {
  TestPool test;
  const auto expect = [&](size_t live, size_t stage, size_t retired, size_t view, size_t pinned,
                          size_t peak, size_t buffers) {
    const PoolStats stats = test.pool.stats();
    CHECK_EQ(stats.live_bytes, live);
    CHECK_EQ(stats.stage_bytes, stage);
    CHECK_EQ(stats.retired_bytes, retired);
    CHECK_EQ(stats.view_bytes, view);
    CHECK_EQ(stats.pinned_bytes, pinned);
    CHECK_EQ(stats.peak_bytes, peak);
    CHECK_EQ(stats.buffers, buffers);
  };
  expect(0, 0, 0, 0, 0, 0, 0);
  auto view = test.pool.get(slot(), 100);
  expect(100, 0, 0, 0, 0, 100, 1);
  test.pool.get(slot(Role::kCombine, 0, Use::kStage), 300);
  expect(400, 300, 0, 0, 0, 400, 2);
  test.pool.get(slot(), 150)->pinned = true;
  expect(500, 300, 100, 100, 200, 600, 3);
  view.reset();
  expect(500, 300, 100, 0, 200, 600, 3);
  test.pool.get(slot(), 201);
  expect(700, 300, 200, 0, 200, 900, 3);  // the first one went, the second is pinned
  test.pool.unpin_all();
  expect(700, 300, 200, 0, 0, 900, 3);
  test.pool.trim();
  expect(700, 300, 0, 0, 0, 900, 2);
}

// A peer may end while its owner announces that a window is gone.
TEST(a_failing_drop_leaves_a_pool_that_can_be_asked) {
  TestPool test;
  auto first = test.pool.get(slot(Role::kCombine, 0), 100);
  auto held = test.pool.get(slot(Role::kCombine, 1), 100);
  auto second = test.pool.get(slot(Role::kCombine, 2), 100);
  for (int lane = 0; lane < 3; ++lane) test.pool.get(slot(Role::kCombine, lane), 1000);
  const std::byte* const base = first->window.base;
  first.reset();
  second.reset();
  test.source.throw_on_drop = 3;
  CHECK_THROWS(test.pool.trim(), PeerLost);
  CHECK_EQ(test.pool.stats().retired_bytes, size_t{100});
  CHECK_EQ(test.pool.stats().view_bytes, size_t{100});
  size_t offset = 0;
  CHECK(test.pool.find(held->window.base, &offset) == held);
  CHECK(test.pool.find(base, &offset) == nullptr);
  CHECK(!test.pool.overlaps(base, 1));
}

int main(int argc, char** argv) { return run_all(argc, argv); }
