// Which ranks hold a row's experts, against a plain count of them; and what top-k sums leave out.

#include "routed_cases.h"

namespace symmoe::device_tests {
namespace {

TEST(route_masks_of_every_shape) {
  std::mt19937 random(31);
  for (const int world : {1, 2, 3, 8, 64}) {
    for (const int64_t rows : {1, 63, 64, 500}) {
      for (const int64_t slots : {1, 8, 22}) {
        for (const bool wide : {false, true}) {
          const Schedule schedule(rows == 63 ? 0 : random());
          const BlocksAtOnce at_once(rows == 500);
          Routed routed(rows, slots, 1 + random() % 256, world, wide, random);
          routed.check(1);
          CHECK_EQ(routed.fault.kind, uint32_t{Fault::kNone});
        }
      }
    }
  }
}

TEST(route_hash_is_of_all_masks_in_their_order) {
  std::mt19937 random(32);
  Routed routed(300, 2, 16, 4, false, random);
  routed.check(8);
  const uint64_t hash = routed.hash.value;
  routed.check(8);  // again, as a replayed graph
  CHECK_EQ(routed.hash.value, hash);
  {
    const BlocksAtOnce at_once(true);
    routed.check(8);
    CHECK_EQ(routed.hash.value, hash);
  }
  // Two rows with different masks change places.
  int64_t other = 1;
  while (routed.wanted(other) == routed.wanted(0)) ++other;
  for (int64_t slot = 0; slot < 2; ++slot) {
    const int64_t first = routed.id(slot);
    routed.set_id(slot, routed.id(other * 2 + slot));
    routed.set_id(other * 2 + slot, first);
  }
  routed.check(8);
  CHECK(routed.hash.value != hash);
}

// More rows than threads; a batch without rows has a hash as well.
TEST(route_many_rows_and_none) {
  std::mt19937 random(33);
  Routed many(70'000, 1, 8, 2, false, random);
  many.check(1);
  Routed none(0, 4, 8, 2, false, random);
  none.hash.value = 99;
  none.run(1);
  CHECK_EQ(none.hash.value, uint64_t{0});
}

TEST(route_wrong_rank_of_an_expert) {
  std::mt19937 random(34);
  for (const int32_t wrong : {-2, 4, 64, INT32_MAX, INT32_MIN}) {
    Routed routed(50, 4, 16, 4, true, random);
    routed.expert_to_rank[5] = wrong;
    routed.set_id(17, 5);
    routed.check(1);
    CHECK_EQ(routed.fault.kind, uint32_t{Fault::kExpertRankWrong});
    CHECK_EQ(routed.fault.subject, int64_t{5});
    CHECK_EQ(routed.fault.detail, int64_t{4});
    CHECK_EQ(routed.fault.value, int64_t{wrong});
  }
}

// A top-k sum with routing is one with an index that leaves out what others hold.
TEST(route_top_k_sums) {
  std::mt19937 random(35);
  constexpr int kRank = 1;
  for (const int64_t slots : {1, 2, 3, 8}) {
    for (const bool indexed : {false, true}) {
      for (const bool masked : {false, true}) {
        for (const bool wide : {false, true}) {
          Routed routed(12, slots, 9, 3, wide, random);
          routed.check(1);
          TopkReduceLaunch shape;
          shape.tokens = 12;
          shape.slots = slots;
          shape.hidden = 40;
          shape.pairs = indexed ? 7 : 12 * slots;
          DeviceTopk topk(shape, true, indexed, {}, random);
          topk.launch.routing = routed.view(kRank, masked);
          topk.output.clear();
          {
            Declared declared;
            declare_own_slots(declared, topk, routed, kRank);
            declared.add(topk.output.data(), topk.output_bytes(), emulator::Permission::kWrite);
            CHECK_EQ(kernels::launch_topk_reduce(topk.launch, 1, nullptr), 0);
          }
          std::vector<char> want = routed_sum(topk, routed, kRank);
          for (int64_t row = 0; masked && row < 12; ++row) {
            if ((routed.wanted(row) >> kRank & 1) != 0) continue;
            std::fill_n(want.begin() + row * 80, 80, reference::kGuard);  // not written
          }
          CHECK_EQ(reference::first_difference(shape.output_type, topk.output.data(), want), -1);
          CHECK(topk.output.guards_untouched());
        }
      }
    }
  }
}

}  // namespace
}  // namespace symmoe::device_tests

DEVICE_TEST_MAIN()
