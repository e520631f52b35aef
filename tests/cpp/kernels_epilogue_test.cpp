// Sums with an epilogue: the reference's bits from every instruction set and any number of threads,
// for all steps that there may be, and how far a norm is from the exact one.

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "epilogue_reference.h"
#include "kernels/cpu/epilogue.h"

using namespace symmoe;
using kernels::Quantized;
using reference::all_choices;
using reference::EpilogueCase;
using reference::for_each_isa;
using reference::kTypes;
using reference::StepChoice;

namespace {

void check_case(EpilogueCase& c, const std::vector<int>& thread_counts) {
  const reference::EpilogueResult want = reference::reduce_with_epilogue(c.args);
  for_each_isa([&] {
    for (const int threads : thread_counts) {
      c.run(threads);
      c.compare(want, std::to_string(threads) + " threads");
    }
  });
}

}  // namespace

TEST(all_steps_of_numbers_of_every_kind) {
  std::mt19937 random(1);
  for (const StepChoice& choice : all_choices()) {
    for (const DType type : kTypes) {
      for (const bool moderate : {true, false}) {
        const auto hidden = static_cast<int64_t>(1 + random() % 150);
        EpilogueCase c(choice, type, 1 + static_cast<int>(random() % 4), 3, hidden,
                       static_cast<int64_t>(random() % 64), random, moderate);
        check_case(c, {1});
      }
    }
  }
}

TEST(any_length_and_alignment) {
  std::mt19937 random(2);
  const StepChoice full{.scale = true, .shared = true, .residual = true, .norm = true};
  for (const DType type : kTypes) {
    for (const int64_t hidden : {1, 7, 8, 15, 16, 31, 33, 63, 64, 65, 127, 128, 129, 257, 2880}) {
      for (const Quantized to : {Quantized::kNone, Quantized::kInt8, Quantized::kFloat8}) {
        for (const int64_t offset : {0, 1, 2, 30}) {
          StepChoice choice = full;
          choice.quantized = to;
          choice.wide_weight = offset == 2;
          EpilogueCase c(choice, type, 2, 2, hidden, offset, random, true);
          check_case(c, {1});
        }
      }
    }
  }
}

TEST(rows_shared_by_threads_and_streamed) {
  std::mt19937 random(3);
  const StepChoice full{.shared = true, .residual = true, .norm = true};
  for (const int64_t offset : {0, 2, 1}) {
    // Over 8 MiB of output; then many rows, of which no two threads may finish the same.
    EpilogueCase large(full, DType::kBFloat16, 2, 9, (1 << 19) + 5, offset, random, true);
    check_case(large, {1, 3});
    StepChoice bytes = full;
    bytes.quantized = Quantized::kInt8;
    EpilogueCase many(bytes, DType::kFloat32, 3, 301, 1000, offset, random, true);
    check_case(many, {1, 2, 5});
  }
}

TEST(only_rows_of_the_ranks_in_the_masks) {
  std::mt19937 random(4);
  for (const DType type : kTypes) {
    for (const bool norm : {false, true}) {
      const StepChoice choice{.shared = true, .residual = true, .norm = norm};
      EpilogueCase c(choice, type, 3, 20, 70, 4, random, true);
      std::vector<uint64_t> masks;
      for (int row = 0; row < 20; ++row) masks.push_back(random() % 8);
      const auto row_bytes = static_cast<size_t>(70) * size_of(type);
      for (size_t row = 0; row < masks.size(); ++row) {
        for (size_t rank = 0; rank < 3; ++rank) {  // NaN where nothing may be read
          if ((masks[row] >> rank & 1) != 0) continue;
          std::memset(c.inputs[rank].data() + row * row_bytes, 0xff, row_bytes);
        }
      }
      c.args.masks = masks.data();
      check_case(c, {1, 2});
    }
  }
}

// Against sums and roots in double: one rounding of the result, and what a few in fp32 add.
TEST(norms_are_within_one_rounding) {
  std::mt19937 random(5);
  for (const DType type : kTypes) {
    const double half_unit = type == DType::kFloat32   ? 0x1p-24
                             : type == DType::kFloat16 ? 0x1p-11
                                                       : 0x1p-8;
    for (const int64_t hidden : {3, 100, 6144, 50'000}) {
      EpilogueCase c({.norm = true, .wide_weight = true}, type, 1, 2, hidden, 0, random, true);
      c.run(1);
      const auto size = static_cast<int64_t>(size_of(type));
      for (int64_t row = 0; row < 2; ++row) {
        const auto element = [&](int64_t column) {
          return double{
              reference::decode(type, c.inputs[0].data() + (row * hidden + column) * size)};
        };
        double squares = 0;
        for (int64_t column = 0; column < hidden; ++column) {
          squares += element(column) * element(column);
        }
        const double factor =
            1 / std::sqrt(squares / static_cast<double>(hidden) + double{c.args.steps.eps});
        // Relative, of the sum of squares (halved by the root), the mean, eps, root, inverse and
        // two products.
        const double fp32 = 0x1p-24 * (static_cast<double>(hidden) / 64 / 2 + 12);
        for (int64_t column = 0; column < hidden; ++column) {
          const double want =
              element(column) * factor *
              double{reference::decode(DType::kFloat32, c.weight.data() + column * 4)};
          const double got =
              reference::decode(type, c.output.data() + (row * hidden + column) * size);
          const double smallest = type == DType::kFloat16 ? 0x1p-25 : 0x1p-134;
          CHECK_MSG(std::fabs(got - want) <= std::fabs(want) * (half_unit + fp32) * 1.01 + smallest,
                    std::string(name_of(type)) + " " + std::to_string(got) + " for " +
                        std::to_string(want));
        }
      }
    }
  }
}

TEST(zeros_and_tiny_rows_quantised) {
  for (const Quantized to : {Quantized::kInt8, Quantized::kFloat8}) {
    for (const float value : {0.0f, 0x1p-149f, 0x1p-126f, 0x1p-120f, 3.4e38f}) {
      std::mt19937 random(6);
      EpilogueCase c({.quantized = to}, DType::kFloat32, 1, 1, 40, 0, random, true);
      for (int64_t i = 0; i < 40; ++i) {
        const float element = i % 3 == 0 ? value : i % 3 == 1 ? -value / 2 : 0.0f;
        std::memcpy(c.inputs[0].data() + 4 * i, &element, 4);
      }
      check_case(c, {1});
      float scale;
      std::memcpy(&scale, c.scales.data(), 4);
      CHECK(std::isnormal(scale));
    }
  }
}

TEST(the_output_may_be_a_source) {
  std::mt19937 random(7);
  for (const DType type : kTypes) {
    EpilogueCase c({.shared = true, .residual = true, .norm = true}, type, 2, 10, 100, 0, random,
                   true);
    const reference::EpilogueResult want = reference::reduce_with_epilogue(c.args);
    c.args.output = c.inputs[1].data();
    c.run(2);
    CHECK_EQ(reference::first_difference(type, c.inputs[1].data(), want.output), -1);
    CHECK_EQ(reference::first_difference(type, c.residual.data(), want.residual), -1);
  }
}

#if defined(__SSE__)
TEST(the_callers_floating_point_mode) {
  std::mt19937 random(8);
  const unsigned before = _mm_getcsr();
  const unsigned hostile = (before & ~0x6000u) | 0x8040u | 0x4000u;  // flush, round up
  for (const Quantized to : {Quantized::kNone, Quantized::kInt8, Quantized::kFloat8}) {
    EpilogueCase c({.scale = true, .residual = true, .norm = true, .quantized = to},
                   DType::kFloat32, 2, 300, 1000, 0, random, true);
    c.args.steps.scale = 0x1p-130f;
    c.args.steps.eps = 0.0f;
    const reference::EpilogueResult want = reference::reduce_with_epilogue(c.args);
    for_each_isa([&] {
      for (const int threads : {1, 3}) {
        _mm_setcsr(hostile);
        c.run(threads);
        const unsigned after = _mm_getcsr();
        _mm_setcsr(before);
        CHECK_EQ(after & 0xffc0u, hostile & 0xffc0u);
        c.compare(want, "in another mode");
      }
    });
  }
}
#endif

TEST(wrong_arguments_write_nothing) {
  std::mt19937 random(9);
  EpilogueCase c({.residual = true, .norm = true}, DType::kFloat16, 2, 2, 8, 0, random, true);
  c.output.clear();
  const auto refused = [&](const std::string& what, auto change) {
    kernels::EpilogueReduceArgs args = c.args;
    change(args);
    CHECK_THROWS_WITH(kernels::reduce_with_epilogue(args, 1), InvalidArgument, what);
    CHECK(c.output.untouched());
  };
  using Args = kernels::EpilogueReduceArgs;
  refused("norm_weight is bfloat16 for rows of float16",
          [](Args& a) { a.steps.weight_type = DType::kBFloat16; });
  refused("eps", [](Args& a) { a.steps.eps = -1.0f; });
  refused("eps", [](Args& a) { a.steps.eps = std::nanf(""); });
  refused("scales is null", [](Args& a) { a.steps.quantized = Quantized::kInt8; });
  refused("ranks is 0", [](Args& a) { a.ranks = 0; });
  refused("ranks is 65", [](Args& a) { a.ranks = 65; });
  refused("negative size", [](Args& a) { a.rows = -1; });
  refused("output is null", [](Args& a) { a.output = nullptr; });
  refused("sources is null", [](Args& a) { a.sources = nullptr; });
  const uint64_t masks[] = {1, 4};
  refused("a mask has rank 2 of 2", [&](Args& a) { a.masks = masks; });
  c.sources[1] = nullptr;
  refused("source of rank 1 is null", [](Args&) {});
  c.args.rows = 0;
  kernels::reduce_with_epilogue(c.args, 1);
  CHECK(c.output.untouched());
}

int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
