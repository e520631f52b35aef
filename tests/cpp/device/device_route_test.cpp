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

// Ids of rows that are no rank's are neither read nor part of the hash.
TEST(route_padding_is_nobodys) {
  std::mt19937 random(36);
  for (const int world : {1, 2, 3, 8, 64}) {
    for (int variant = 0; variant < 12; ++variant) {
      if (kShare > 1 && (world > 8 || variant % 4 > 1)) continue;  // enough for races
      const Schedule schedule(random());
      const BlocksAtOnce at_once(variant % 2 == 0);
      const Shares shares = random_shares(world, variant, random);
      if (shares.rows() == 0) continue;
      Routed routed(shares.rows(), 3, 16, world, variant % 2 == 0, random);
      routed.share(shares, world - 1);
      routed.check(2);
      const uint64_t hash = routed.hash.value;
      for (int64_t row = 0; row < shares.rows(); ++row) {
        if (routed.owned[static_cast<size_t>(row)]) continue;
        for (int64_t slot = 0; slot < 3; ++slot) routed.set_id(row * 3 + slot, INT32_MAX - row);
      }
      routed.check(1);
      CHECK_EQ(routed.hash.value, hash);
      CHECK_EQ(routed.fault.kind, uint32_t{Fault::kNone});
    }
  }
}

// With one wrong size nobody has rows. It is not this kernel that tells.
TEST(route_sizes_that_do_not_fit) {
  std::mt19937 random(37);
  for (const Layout layout : {Layout::kPackedOnDevice, Layout::kPaddedOnDevice}) {
    for (const int32_t wrong : {-1, 6, INT32_MAX, INT32_MIN}) {
      Shares shares{.layout = layout, .sizes = {5, 5, 5}, .padded_to = 5};
      Routed routed(shares.rows(), 2, 8, 3, false, random);
      routed.share(shares, 0);
      routed.check(1);
      routed.sizes[1] = wrong;
      routed.owned.assign(routed.owned.size(), false);
      routed.check(1);
      CHECK_EQ(routed.fault.kind, uint32_t{Fault::kNone});
    }
  }
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

// Tokens that are no rank's have neither an index nor weights that anybody reads, and no row.
void check_padding(const Shares& shares, int64_t hidden, int64_t slots, std::mt19937& random) {
  using emulator::Permission;
  const auto world = static_cast<int>(shares.sizes.size());
  TopkReduceLaunch shape;
  shape.tokens = shares.rows();
  shape.slots = slots;
  shape.hidden = hidden;
  shape.pairs = 7;
  DeviceTopk topk(shape, true, true, {}, random);
  topk.launch.shares = shares.for_kernel(world - 1);
  topk.launch.ranks = world;
  std::vector<char> want = topk.wanted();
  topk.output.clear();
  Declared declared;
  declared.add(topk.input.data(), topk.input.size(), Permission::kRead);
  declared.add(shares.sizes.data(), int64_t{world} * 4, Permission::kRead);
  const std::vector<bool> owned = shares.owned();
  for (int64_t token = 0; token < shape.tokens; ++token) {
    const int64_t first = token * slots;
    if (owned[static_cast<size_t>(token)]) {
      declared.add(topk.index.data() + first * 4, slots * 4, Permission::kRead);
      declared.add(topk.weights.data() + first * 4, slots * 4, Permission::kRead);
      declared.add(topk.output.data() + token * hidden * 2, hidden * 2, Permission::kWrite);
      continue;
    }
    for (int64_t slot = 0; slot < slots; ++slot) topk.set_index(first + slot, INT32_MAX);
    std::fill_n(want.begin() + token * hidden * 2, hidden * 2, reference::kGuard);
  }
  CHECK_EQ(kernels::launch_topk_reduce(topk.launch, 1, nullptr), 0);
  CHECK_MSG(reference::first_difference(DType::kBFloat16, topk.output.data(), want) == -1,
            topk.describe());
  CHECK(topk.output.guards_untouched());
  CHECK_EQ(topk.fault.kind, uint32_t{Fault::kNone});
}

TEST(route_top_k_sums_without_padding) {
  std::mt19937 random(38);
  for (const int world : {1, 2, 8, 64}) {  // 64 are more than a block of few columns has threads
    for (int variant = 0; variant < 12; ++variant) {
      if (kShare > 1 && (world > 8 || variant % 4 != 3)) continue;  // enough for races
      const Schedule schedule(random());
      const Shares shares = random_shares(world, variant, random);
      const int64_t hidden = variant % 3 == 0 ? 13 : variant % 3 == 1 ? 40 : 600;
      if (shares.rows() > 0) check_padding(shares, hidden, variant % 2 == 0 ? 2 : 3, random);
    }
  }
  // Nobody has rows where one size is wrong.
  Shares wrong{.layout = Layout::kPaddedOnDevice, .sizes = {2, -1}, .padded_to = 3};
  TopkReduceLaunch shape;
  shape.tokens = wrong.rows();
  shape.slots = 2;
  shape.hidden = 40;
  DeviceTopk topk(shape, false, false, {}, random);
  topk.launch.shares = wrong.for_kernel(0);
  topk.launch.ranks = 2;
  topk.output.clear();
  CHECK_EQ(kernels::launch_topk_reduce(topk.launch, 1, nullptr), 0);
  const std::vector<char> untouched(static_cast<size_t>(topk.output_bytes()), reference::kGuard);
  CHECK(std::equal(untouched.begin(), untouched.end(), topk.output.data()));
}

}  // namespace
}  // namespace symmoe::device_tests

DEVICE_TEST_MAIN()
