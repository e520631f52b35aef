// Rows that topk_reduce writes into a window, which go by way of scratch memory while they are
// small enough: the same bits as rows written directly, and nothing beside them.

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/cpu/kernels.h"
#include "kernels_cases.h"
#include "kernels_reference.h"

using namespace symmoe;
using kernels::TopkReduceArgs;
using reference::for_each_isa;
using reference::GuardedOutput;
using reference::kTypes;
using reference::TopkCase;

namespace {

constexpr int64_t kKilo = 1024;

// Directly, as other tests compare it with the reference, and as to a window.
void check_both_ways(const TopkCase& c, int threads) {
  const auto bytes =
      static_cast<size_t>(c.args.tokens * c.args.hidden) * size_of(c.args.output_type);
  for_each_isa([&] {
    c.output.clear();
    kernels::topk_reduce(c.args, threads);
    const std::vector<char> direct(c.output.data(), c.output.data() + bytes);
    TopkReduceArgs shared = c.args;
    shared.output_is_shared = true;
    c.output.clear();
    kernels::topk_reduce(shared, threads);
    CHECK_MSG(std::memcmp(c.output.data(), direct.data(), bytes) == 0, c.describe());
    CHECK_MSG(c.output.guards_untouched(), c.describe());
  });
}

TopkReduceArgs shape_of(int64_t tokens, int64_t slots, int64_t hidden, DType type) {
  TopkReduceArgs shape;
  shape.tokens = tokens;
  shape.slots = slots;
  shape.hidden = hidden;
  shape.pairs = 5;
  shape.input_type = shape.output_type = type;
  return shape;
}

}  // namespace

// Rows of one byte less than, as large as, and more than: what is worth a copy, what fits into the
// scratch memory behind rows that wait there, and all of the scratch memory.
TEST(rows_around_the_sizes_where_the_way_changes) {
  std::mt19937 random(21);
  for (const int64_t row_bytes : {16 * kKilo, 48 * kKilo, 64 * kKilo}) {
    for (const DType type : {DType::kBFloat16, DType::kFloat32}) {
      const auto size = static_cast<int64_t>(size_of(type));
      for (const int64_t more : {-1, 0, 1}) {
        for (const int64_t offset : {0, 1}) {
          const TopkCase c(shape_of(4, 2, row_bytes / size + more, type), true, offset == 1, offset,
                           random);
          check_both_ways(c, 1);
        }
      }
    }
  }
}

TEST(small_rows_of_every_type_gather_in_scratch) {
  std::mt19937 random(22);
  for (const DType input : kTypes) {
    for (const DType output : kTypes) {
      for (const int64_t hidden : {1, 7, 33, 500, 3001}) {
        for (const int64_t offset : {0, 3, 62}) {
          // More tokens than a batch has; the last rows of a batch do not fill what is copied.
          TopkReduceArgs shape = shape_of(64 + 3 + hidden % 5, 3, hidden, input);
          shape.output_type = output;
          shape.has_scale = offset == 3;
          shape.scale = 0.5F;
          shape.index_is_64bit = hidden % 2 == 0;
          const TopkCase c(shape, offset != 62, hidden % 3 != 0, offset, random);
          check_both_ways(c, 1);
        }
      }
    }
  }
}

// Against the reference itself, so that no mistake is made in both ways alike.
TEST(rows_in_a_window_are_right) {
  std::mt19937 random(23);
  for (const int64_t hidden : {5, 1000, 8193, 24 << 10}) {
    TopkReduceArgs shape = shape_of(hidden < 5000 ? 130 : 3, 2, hidden, DType::kBFloat16);
    shape.output_is_shared = true;
    const TopkCase c(shape, true, true, hidden % 2, random);
    const std::vector<char> want = reference::topk_reduce(c.args);
    for_each_isa([&] { c.check(want, 1); });
  }
}

TEST(no_slots_and_absent_slots) {
  std::mt19937 random(24);
  TopkReduceArgs shape = shape_of(70, 0, 300, DType::kBFloat16);
  check_both_ways(TopkCase(shape, false, false, 0, random), 1);
  shape.slots = 2;
  shape.pairs = 0;  // every slot is absent
  check_both_ways(TopkCase(shape, true, true, 5, random), 1);
}

// Many slots per token: fewer tokens in a batch than it could have.
TEST(batches_cut_short_by_their_terms) {
  std::mt19937 random(25);
  for (const int64_t slots : {22, 100, 300}) {
    check_both_ways(TopkCase(shape_of(20, slots, 77, DType::kFloat32), true, true, 1, random), 1);
  }
}

// Large outputs are streamed instead, and just below that they are not; several threads share them.
TEST(outputs_around_the_size_where_streaming_begins) {
  std::mt19937 random(26);
  constexpr int64_t kHidden = 2048;
  constexpr int64_t kStreamTokens = (8 << 20) / (kHidden * 2);
  for (const int64_t tokens : {kStreamTokens - 1, kStreamTokens, kStreamTokens + 65}) {
    for (const int64_t offset : {0, 1}) {
      const TopkCase c(shape_of(tokens, 1, kHidden, DType::kBFloat16), true, false, offset, random);
      check_both_ways(c, 1);
      check_both_ways(c, 3);
    }
  }
}

int main(int argc, char** argv) { return check::run_all(argc, argv); }
