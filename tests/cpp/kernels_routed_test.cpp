// Masks from a router's choice, and the kernels that go by them: the reference's bits from every
// instruction set, and no row read or written that has none.

#include <bit>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/routing.h"
#include "kernels_cases.h"
#include "kernels_reference.h"

using namespace symmoe;
using kernels::SlotRouting;
using reference::Bytes;
using reference::for_each_isa;
using reference::GuardedOutput;
using reference::kTypes;

namespace {

// A router's choice with its memory, at any alignment.
struct Choice {
  Choice(int64_t row_count, int64_t slots, std::vector<int32_t> ranks, int world, bool wide,
         std::mt19937& random, int64_t offset = 1)
      : rows(row_count),
        experts(std::move(ranks)),
        ids(rows * slots * (wide ? 8 : 4), offset),
        ranks_of(static_cast<int64_t>(experts.size()) * 4, offset) {
    for (size_t expert = 0; expert < experts.size(); ++expert) {
      std::memcpy(ranks_of.data() + 4 * expert, &experts[expert], 4);
    }
    routing = {.ids = ids.data(),
               .expert_to_rank = ranks_of.data(),
               .slots = slots,
               .experts = static_cast<int64_t>(experts.size()),
               .world = world,
               .ids_are_64bit = wide};
    const int64_t count = static_cast<int64_t>(experts.size());
    const int64_t odd[] = {-1, count, count + 7, wide ? int64_t{1} << 40 : 1 << 30, -(1 << 30)};
    for (int64_t i = 0; i < rows * slots; ++i) {
      const bool none = random() % 6 == 0 || count == 0;
      set(i, none ? odd[random() % 5] : static_cast<int64_t>(random()) % count);
    }
  }

  void set(int64_t position, int64_t id) {
    chosen.resize(static_cast<size_t>(rows * routing.slots));
    chosen[static_cast<size_t>(position)] = id;
    if (routing.ids_are_64bit) {
      std::memcpy(ids.data() + position * 8, &id, 8);
    } else {
      const auto narrow = static_cast<int32_t>(id);
      std::memcpy(ids.data() + position * 4, &narrow, 4);
    }
  }

  int rank_of(int64_t position) const {
    const int64_t id = chosen[static_cast<size_t>(position)];
    return id < 0 || id >= routing.experts ? -1 : experts[static_cast<size_t>(id)];
  }

  std::vector<uint64_t> masks() const {
    std::vector<uint64_t> found(static_cast<size_t>(rows));
    kernels::route_masks(routing, 0, rows, found.data());
    return found;
  }

  int64_t rows;
  std::vector<int32_t> experts;
  Bytes ids;
  Bytes ranks_of;
  std::vector<int64_t> chosen;
  SlotRouting routing;
};

// Rows of each rank, of which only those in the masks exist: the others' are bytes of NaN.
struct Sources {
  Sources(const std::vector<uint64_t>& row_masks, int ranks, int64_t hidden, DType type,
          int64_t offset, std::mt19937& random)
      : masks(row_masks) {
    const int64_t row_bytes = hidden * static_cast<int64_t>(size_of(type));
    for (int rank = 0; rank < ranks; ++rank) {
      memory.emplace_back(static_cast<int64_t>(masks.size()) * row_bytes, offset + rank);
      reference::fill(memory.back(), type, random);
      for (size_t row = 0; row < masks.size(); ++row) {
        if ((masks[row] >> rank & 1) != 0) continue;
        std::memset(memory.back().data() + static_cast<int64_t>(row) * row_bytes, 0xff,
                    static_cast<size_t>(row_bytes));
      }
      addresses.push_back(memory.back().data());
    }
  }

  std::vector<uint64_t> masks;
  std::vector<Bytes> memory;
  std::vector<const void*> addresses;
};

// Row by row, by the reference of the dense sum over the ranks in the mask.
std::vector<char> reduced(const kernels::RoutedReduceArgs& args) {
  const int64_t row_bytes = args.hidden * static_cast<int64_t>(size_of(args.type));
  std::vector<char> all;
  for (int64_t row = 0; row < args.rows; ++row) {
    std::vector<const void*> sources;
    for (int rank = 0; rank < args.ranks; ++rank) {
      if ((args.masks[row] >> rank & 1) == 0) continue;
      sources.push_back(static_cast<const char*>(args.sources[rank]) + row * row_bytes);
    }
    std::vector<char> one(static_cast<size_t>(row_bytes), 0);
    if (!sources.empty()) {
      one = reference::rank_reduce({.sources = sources.data(),
                                    .ranks = static_cast<int>(sources.size()),
                                    .count = args.hidden,
                                    .type = args.type});
    }
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

void check_reduce(const std::vector<uint64_t>& masks, int ranks, int64_t hidden, DType type,
                  int64_t offset, int threads, std::mt19937& random) {
  const Sources sources(masks, ranks, hidden, type, offset, random);
  const auto rows = static_cast<int64_t>(masks.size());
  const GuardedOutput output(rows * hidden * static_cast<int64_t>(size_of(type)), offset);
  const kernels::RoutedReduceArgs args{.sources = sources.addresses.data(),
                                       .masks = masks.data(),
                                       .ranks = ranks,
                                       .output = output.data(),
                                       .rows = rows,
                                       .hidden = hidden,
                                       .type = type};
  const std::vector<char> want = reduced(args);
  for_each_isa([&] {
    output.clear();
    kernels::routed_reduce(args, threads);
    const int64_t at = reference::first_difference(type, output.data(), want);
    CHECK_MSG(at == -1, std::string(kernels::isa_name()) + " " + name_of(type) + ", " +
                            std::to_string(ranks) + " ranks, hidden " + std::to_string(hidden) +
                            " at " + std::to_string(at));
    CHECK(output.guards_untouched());
  });
}

std::vector<uint64_t> random_masks(int64_t rows, int ranks, std::mt19937& random) {
  std::vector<uint64_t> masks;
  for (int64_t row = 0; row < rows; ++row) {
    uint64_t mask = 0;
    const uint32_t chance = random() % 5;  // none, some, all
    for (int rank = 0; rank < ranks; ++rank) mask |= uint64_t{random() % 4 < chance} << rank;
    masks.push_back(mask);
  }
  return masks;
}

}  // namespace

TEST(masks_are_the_ranks_of_the_experts) {
  std::mt19937 random(1);
  const std::vector<std::vector<int32_t>> placements = {
      {}, {0}, {-1}, {0, 1, 2, 3}, {2, 2, -1, 0, 0, 3, 1}};
  for (const auto& placement : placements) {
    for (const int64_t slots : {0, 1, 2, 3, 8, 9}) {
      for (const bool wide : {false, true}) {
        const Choice choice(37, slots, placement, 4, wide, random);
        const std::vector<uint64_t> masks = choice.masks();
        for (int64_t row = 0; row < choice.rows; ++row) {
          uint64_t want = 0;
          for (int64_t slot = 0; slot < slots; ++slot) {
            const int rank = choice.rank_of(row * slots + slot);
            if (rank >= 0) want |= uint64_t{1} << rank;
          }
          CHECK_EQ(masks[static_cast<size_t>(row)], want);
        }
      }
    }
  }
}

TEST(masks_of_some_rows_leave_the_others_alone) {
  std::mt19937 random(2);
  const Choice choice(10, 2, {0, 1, 2}, 3, true, random);
  std::vector<uint64_t> masks(10, 77);
  kernels::route_masks(choice.routing, 3, 7, masks.data());
  for (size_t row = 0; row < masks.size(); ++row)
    CHECK((masks[row] == 77) == (row < 3 || row >= 7));
}

TEST(the_last_of_64_ranks) {
  std::mt19937 random(3);
  Choice choice(2, 1, {63, 0}, 64, false, random);
  choice.set(0, 0);
  choice.set(1, 1);
  CHECK(choice.masks() == (std::vector<uint64_t>{uint64_t{1} << 63, 1}));
}

TEST(wrong_ranks_of_experts) {
  std::mt19937 random(4);
  for (const int32_t rank : {3, -2, 1 << 30}) {
    const Choice choice(2, 1, {0, rank}, 3, false, random);
    CHECK_THROWS_WITH(choice.masks(), InvalidArgument,
                      "expert_to_rank[1] is " + std::to_string(rank) + ", must be -1 or a rank");
  }
  const Choice choice(2, 1, {0}, 65, false, random);
  CHECK_THROWS_WITH(choice.masks(), InvalidArgument, "1 to 64 ranks, not of 65");
}

// Every change of one bit of any row, and every exchange of two rows that differ, gives another.
TEST(hashes_differ) {
  std::mt19937 random(5);
  for (const int64_t rows : {1, 2, 3, 4, 5, 9, 64}) {
    std::vector<uint64_t> masks = random_masks(rows, 64, random);
    masks[0] = 1;
    std::set<uint64_t> hashes{kernels::hash_of_masks(masks.data(), rows)};
    size_t different = 1;
    const auto add = [&] {
      CHECK(kernels::hash_of_masks(masks.data(), rows) != 0);
      hashes.insert(kernels::hash_of_masks(masks.data(), rows));
      ++different;
    };
    for (size_t row = 0; row < masks.size(); ++row) {
      for (int bit = 0; bit < 64; ++bit) {
        masks[row] ^= uint64_t{1} << bit;
        add();
        // The same bit of the next row as well: it must not undo the first.
        if (bit == 63 && row + 4 < masks.size()) {
          masks[row + 4] ^= uint64_t{1} << bit;
          add();
          masks[row + 4] ^= uint64_t{1} << bit;
        }
        masks[row] ^= uint64_t{1} << bit;
      }
    }
    masks.push_back(0);
    hashes.insert(kernels::hash_of_masks(masks.data(), rows + 1));
    CHECK_EQ(hashes.size(), different + 1);
  }
}

TEST(the_index_has_the_slots_of_the_rank) {
  std::mt19937 random(6);
  for (const bool wide : {false, true}) {
    for (const int indexed : {0, 4, 8}) {
      const Choice choice(20, 3, {0, 1, -1, 1, 0}, 2, wide, random);
      const std::vector<uint64_t> masks = choice.masks();
      const Bytes index(20 * 3 * std::max(indexed, 1), 3);
      for (int64_t i = 0; i < 60; ++i) {
        const int64_t value = 100 + i;
        std::memcpy(index.data() + i * indexed, &value, static_cast<size_t>(indexed));
      }
      for (const int rank : {0, 1}) {
        std::vector<int64_t> routed(60, 7);
        kernels::route_index(choice.routing, rank, masks.data(), 20,
                             indexed == 0 ? nullptr : index.data(), indexed == 8, routed.data());
        for (int64_t i = 0; i < 60; ++i) {
          const int64_t want = choice.rank_of(i) != rank ? -1 : indexed == 0 ? i : 100 + i;
          CHECK_EQ(routed[static_cast<size_t>(i)], want);
        }
      }
    }
  }
}

TEST(sums_over_the_ranks_in_the_masks) {
  std::mt19937 random(7);
  for (const DType type : kTypes) {
    for (const int ranks : {1, 2, 3, 4, 5, 8, 17}) {
      for (const int64_t hidden : {1, 7, 33, 130, 1000}) {
        check_reduce(random_masks(13, ranks, random), ranks, hidden, type, hidden % 3, 1, random);
      }
    }
  }
}

TEST(large_rows_are_streamed_and_shared_by_threads) {
  std::mt19937 random(8);
  for (const DType type : {DType::kBFloat16, DType::kFloat32}) {
    for (const int64_t offset : {0, 2, 1}) {
      // Over 8 MiB of output.
      check_reduce(random_masks(9, 3, random), 3, (1 << 20) + 5, type, offset, 1, random);
      check_reduce(random_masks(40, 3, random), 3, 50'001, type, offset, 3, random);
    }
  }
}

TEST(the_output_may_be_a_source) {
  std::mt19937 random(9);
  const std::vector<uint64_t> masks = random_masks(30, 2, random);
  Sources sources(masks, 2, 100, DType::kBFloat16, 0, random);
  kernels::RoutedReduceArgs args{.sources = sources.addresses.data(),
                                 .masks = masks.data(),
                                 .ranks = 2,
                                 .output = sources.memory[1].data(),
                                 .rows = 30,
                                 .hidden = 100};
  const std::vector<char> want = reduced(args);
  kernels::routed_reduce(args, 1);
  CHECK_EQ(reference::first_difference(args.type, sources.memory[1].data(), want), -1);
}

TEST(nothing_to_sum_and_wrong_arguments) {
  const uint64_t masks[] = {1, 4};
  float row[2] = {};
  const void* sources[] = {row, row};
  kernels::RoutedReduceArgs args{.sources = sources,
                                 .masks = masks,
                                 .ranks = 2,
                                 .output = row,
                                 .rows = 2,
                                 .hidden = 1,
                                 .type = DType::kFloat32};
  CHECK_THROWS_WITH(kernels::routed_reduce(args, 1), InvalidArgument, "a mask has rank 2 of 2");
  args.ranks = 65;
  CHECK_THROWS_WITH(kernels::routed_reduce(args, 1), InvalidArgument, "must be 1 to 64");
  args.ranks = 3;
  args.rows = 1;
  sources[0] = nullptr;
  CHECK_THROWS_WITH(kernels::routed_reduce(args, 1), InvalidArgument, "source of rank 0 is null");
  args.masks = nullptr;
  CHECK_THROWS_WITH(kernels::routed_reduce(args, 1), InvalidArgument, "masks is null");
  args.rows = 0;
  kernels::routed_reduce(args, 1);
}

TEST(copies_of_routed_rows) {
  std::mt19937 random(10);
  const std::vector<uint64_t> masks = random_masks(50, 3, random);
  for (const size_t row_bytes : {size_t{3}, size_t{100'000}}) {
    const auto bytes = static_cast<int64_t>(50 * row_bytes);
    const Bytes from(bytes, 1);
    reference::fill(from, DType::kFloat16, random);
    for (const int threads : {1, 3}) {
      const GuardedOutput to(bytes, 0);
      to.clear();
      kernels::copy_routed(to.data(), from.data(), masks.data(), 1, 50, row_bytes, threads);
      for (size_t row = 0; row < masks.size(); ++row) {
        const char* const found = to.data() + row * row_bytes;
        if ((masks[row] >> 1 & 1) != 0) {
          CHECK(std::memcmp(found, from.data() + row * row_bytes, row_bytes) == 0);
        } else {
          CHECK(
              std::all_of(found, found + row_bytes, [](char c) { return c == reference::kGuard; }));
        }
      }
      CHECK(to.guards_untouched());
    }
  }
}

// The top-k sum writes rows in the masks as always, and the others not at all: whatever way the
// rows take, and whatever the batches look like that the masks cut.
TEST(topk_sums_of_the_rows_in_the_masks) {
  std::mt19937 random(11);
  for (const int64_t hidden : {int64_t{33}, int64_t{3000}, int64_t{40'000}}) {
    for (const int64_t slots : {1, 2, 9}) {
      for (const bool shared : {false, true}) {
        const int64_t tokens = hidden > 10'000 ? 6 : 200;
        kernels::TopkReduceArgs shape;
        shape.tokens = tokens;
        shape.slots = slots;
        shape.hidden = hidden;
        shape.pairs = 5;
        shape.output_is_shared = shared;
        reference::TopkCase c(shape, true, true, hidden % 2, random);
        const std::vector<char> want = reference::topk_reduce(c.args);
        const std::vector<uint64_t> masks = random_masks(tokens, 2, random);
        c.args.masks = masks.data();
        c.args.bit = 2;
        for_each_isa([&] {
          for (const int threads : {1, 4}) {
            c.output.clear();
            kernels::topk_reduce(c.args, threads);
            const auto row_bytes = static_cast<size_t>(hidden) * size_of(shape.output_type);
            for (size_t row = 0; row < masks.size(); ++row) {
              const char* const found = c.output.data() + row * row_bytes;
              if ((masks[row] & 2) == 0) {
                CHECK(std::all_of(found, found + row_bytes,
                                  [](char byte) { return byte == reference::kGuard; }));
                continue;
              }
              const auto first = want.begin() + static_cast<int64_t>(row * row_bytes);
              const std::vector<char> one(first, first + static_cast<int64_t>(row_bytes));
              CHECK_EQ(reference::first_difference(shape.output_type, found, one), -1);
            }
            CHECK(c.output.guards_untouched());
          }
        });
      }
    }
  }
}

int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
