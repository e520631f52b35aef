#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "kernels/cpu/kernels.h"
#include "kernels_cases.h"
#include "kernels_reference.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace symmoe {
namespace {

using kernels::RankReduceArgs;
using kernels::TopkReduceArgs;
using reference::Bytes;
using reference::for_each_isa;
using reference::GuardedOutput;
using reference::kTypes;
using reference::RankCase;
using reference::TopkCase;

TEST(topk_reduce_every_combination_of_types) {
  std::mt19937 random(1);
  for (DType input : kTypes) {
    for (DType output : kTypes) {
      for (int weights = 0; weights < 3; ++weights) {
        for (int index = 0; index < 3; ++index) {
          for (int variant = 0; variant < 6; ++variant) {
            TopkReduceArgs shape;
            shape.tokens = 1 + static_cast<int64_t>(random() % 4);
            shape.slots = 1 + static_cast<int64_t>(random() % 22);
            shape.hidden = 1 + static_cast<int64_t>(random() % 130);
            shape.pairs = 1 + static_cast<int64_t>(random() % 9);
            shape.input_type = input;
            shape.output_type = output;
            shape.weights_type = weights == 2 ? input : DType::kFloat32;
            shape.index_is_64bit = index == 2;
            shape.has_scale = variant % 2 == 1;
            shape.scale = variant == 1 ? 2.5f : variant == 3 ? -0.37f : 1e-30f;
            const int64_t offset = variant < 3 ? 0 : static_cast<int64_t>(random() % 63);
            const TopkCase c(shape, weights > 0, index > 0, offset, random);
            const std::vector<char> want = reference::topk_reduce(c.args);
            for_each_isa([&] { c.check(want, 1); });
          }
        }
      }
    }
  }
}

TEST(topk_reduce_every_hidden_and_slots) {
  std::mt19937 random(2);
  for (DType type : kTypes) {
    for (int64_t hidden = 1; hidden <= 131; ++hidden) {
      TopkReduceArgs shape;
      shape.tokens = 3;
      shape.slots = 1 + hidden % 22;
      shape.hidden = hidden == 131 ? 2880 : hidden;
      shape.pairs = 5;
      shape.input_type = shape.output_type = type;
      const TopkCase c(shape, hidden % 3 != 0, hidden % 2 == 0, hidden % 64, random);
      const std::vector<char> want = reference::topk_reduce(c.args);
      for_each_isa([&] { c.check(want, 1); });
    }
  }
}

TEST(topk_reduce_threads_and_many_slots) {
  std::mt19937 random(3);
  for (int64_t slots : {2, 3, 70}) {
    TopkReduceArgs shape;  // large enough for three threads
    shape.slots = slots;
    shape.tokens = slots == 70 ? 25 : 560;
    shape.hidden = slots == 3 ? 4097 : 1999;  // more than one tile, or less
    shape.pairs = 64;
    shape.input_type = slots == 3 ? DType::kFloat16 : DType::kBFloat16;
    shape.output_type = slots == 3 ? DType::kFloat32 : DType::kBFloat16;
    const TopkCase c(shape, true, slots == 2, 0, random);
    const std::vector<char> want = reference::topk_reduce(c.args);
    for_each_isa([&] {
      for (int threads : {1, 2, 3}) c.check(want, threads);
    });
  }
}

// Inputs beyond the caches take another path through the rows.
TEST(topk_reduce_from_memory_every_type) {
  std::mt19937 random(13);
  for (DType input : kTypes) {
    for (DType output : kTypes) {
      for (int64_t slots : {1, 2, 3, 9}) {
        TopkReduceArgs shape;
        shape.slots = slots;
        shape.hidden = slots == 3 ? 8200 : 1033;
        shape.tokens = 1 + (int64_t{1} << 20) / (slots * shape.hidden);
        shape.pairs = shape.tokens * slots;
        shape.input_type = input;
        shape.output_type = output;
        shape.has_scale = slots == 9;
        shape.scale = 0.75f;
        const TopkCase c(shape, slots != 2, slots == 9, slots == 3 ? 1 : 0, random);
        const std::vector<char> want = reference::topk_reduce(c.args);
        for_each_isa([&] { c.check(want, 1); });
      }
    }
  }
}

TEST(topk_reduce_streams_large_outputs) {
  std::mt19937 random(4);
  for (int64_t offset : {0, 2, 1}) {
    TopkReduceArgs shape;
    shape.tokens = 1100;
    shape.slots = 1;
    shape.hidden = 4100;
    const TopkCase c(shape, true, false, offset, random);
    const std::vector<char> want = reference::topk_reduce(c.args);
    for_each_isa([&] { c.check(want, 2); });
  }
}

TEST(topk_reduce_without_terms) {
  std::mt19937 random(5);
  TopkReduceArgs shape;
  shape.tokens = 2;
  shape.slots = 3;
  shape.hidden = 77;
  for (float scale : {1.0f, -1.0f, std::numeric_limits<float>::infinity()}) {
    shape.has_scale = scale != 1.0f;
    shape.scale = scale;
    const TopkCase c(shape, true, true, 0, random);  // no pairs: every slot is absent
    const std::vector<char> want = reference::topk_reduce(c.args);
    for_each_isa([&] { c.check(want, 1); });
  }
  shape.slots = 0;
  const TopkCase c(shape, false, false, 0, random);
  const std::vector<char> want = reference::topk_reduce(c.args);
  for_each_isa([&] { c.check(want, 1); });
}

TEST(topk_reduce_rejects_wrong_arguments_before_writing) {
  std::mt19937 random(6);
  for (bool wide : {false, true}) {
    TopkReduceArgs shape;
    shape.tokens = 5;
    shape.slots = 3;
    shape.hidden = 40;
    shape.pairs = 7;
    shape.index_is_64bit = wide;
    for (int64_t bad : {int64_t{7}, int64_t{-2}, wide ? INT64_MIN : int64_t{INT32_MIN},
                        wide ? INT64_MAX : int64_t{INT32_MAX}}) {
      const TopkCase c(shape, true, true, 0, random);
      c.set_index(4 * 3 + 1, bad);
      c.output.clear();
      CHECK_THROWS_WITH(kernels::topk_reduce(c.args, 1), InvalidArgument,
                        "index[4, 1] is " + std::to_string(bad) + ",");
      CHECK(c.output.untouched());
    }
  }
  TopkReduceArgs args;
  args.tokens = -1;
  CHECK_THROWS_WITH(kernels::topk_reduce(args, 1), InvalidArgument, "tokens -1");
  args.tokens = 1;
  args.hidden = 1;
  CHECK_THROWS_WITH(kernels::topk_reduce(args, 1), InvalidArgument, "output is null");
  args.weights = &args;
  args.weights_type = DType::kFloat16;
  CHECK_THROWS_WITH(kernels::topk_reduce(args, 1), InvalidArgument, "weights are float16");
}

TEST(rank_reduce_every_type_ranks_and_count) {
  std::mt19937 random(7);
  for (DType type : kTypes) {
    for (int64_t count = 0; count <= 140; ++count) {
      const int ranks = count % 10 == 0 ? 2 : 1 + static_cast<int>(random() % 17);
      const RankCase c(type, ranks, count, count % 2 == 0 ? 0 : count % 64, random);
      const std::vector<char> want = reference::rank_reduce(c.args);
      for_each_isa([&] { c.check(want, 1); });
    }
    for (int ranks : {1, 2, 3, 4, 8, 64}) {
      const RankCase c(type, ranks, 5003, 2 * ranks, random);
      const std::vector<char> want = reference::rank_reduce(c.args);
      for_each_isa([&] { c.check(want, 1); });
    }
  }
}

TEST(rank_reduce_threads_and_streaming) {
  std::mt19937 random(8);
  for (DType type : kTypes) {
    for (int64_t offset : {0, 1}) {
      const RankCase c(type, 2, 1'100'003, offset, random);
      const std::vector<char> want = reference::rank_reduce(c.args);
      for_each_isa([&] {
        for (int threads : {1, 2, 3}) c.check(want, threads);
      });
    }
  }
  for (int64_t offset : {0, 4, 1}) {
    const RankCase c(DType::kBFloat16, 2, (int64_t{9} << 19) + 3, offset, random);
    const std::vector<char> want = reference::rank_reduce(c.args);
    for_each_isa([&] {
      for (int threads : {1, 3}) c.check(want, threads);
    });
  }
}

// The own rows of a reduce in place: the output is exactly one of the sources.
TEST(rank_reduce_over_one_of_its_sources) {
  std::mt19937 random(15);
  for (DType type : kTypes) {
    for (int64_t count : {1, 100, 5003, 4'200'001}) {  // the last one is streamed
      for (int64_t offset : {0, 2, 1, 33}) {
        const int ranks = count > 100'000 ? 2 : 1 + static_cast<int>(random() % 9);
        if (count > 100'000 && offset > 1) continue;
        RankCase c(type, ranks, count, offset, random);
        const std::vector<char> want = reference::rank_reduce(c.args);
        const size_t bytes = want.size();
        for (int over : {0, ranks - 1}) {
          char* const output = c.inputs[static_cast<size_t>(over)].data();
          const std::vector<char> before(output, output + bytes);
          c.args.output = output;
          for_each_isa([&] {
            for (int threads : {1, 3}) {
              std::memcpy(output, before.data(), bytes);
              kernels::rank_reduce(c.args, threads);
              CHECK_EQ(reference::first_difference(type, output, want), -1);
            }
          });
          std::memcpy(output, before.data(), bytes);
        }
      }
    }
  }
}

TEST(rank_reduce_of_one_fp32_rank_keeps_every_bit) {
  std::mt19937 random(9);
  const RankCase c(DType::kFloat32, 1, 5000, 0, random);
  for_each_isa([&] {
    kernels::rank_reduce(c.args, 1);
    CHECK(std::memcmp(c.output.data(), c.sources[0], 5000 * sizeof(float)) == 0);
  });
}

TEST(rank_reduce_rejects_wrong_arguments) {
  RankReduceArgs args;
  CHECK_THROWS_WITH(kernels::rank_reduce(args, 1), InvalidArgument, "ranks is 0");
  args.ranks = 2;
  args.count = -3;
  CHECK_THROWS_WITH(kernels::rank_reduce(args, 1), InvalidArgument, "count is -3");
  args.count = 4;
  char output[8];
  args.output = output;
  const void* sources[] = {output, nullptr};
  args.sources = sources;
  CHECK_THROWS_WITH(kernels::rank_reduce(args, 1), InvalidArgument, "rank 1 is null");
}

TEST(copy_every_size) {
  std::mt19937 random(10);
  for (int64_t size : {0, 1, 63, 64, 1000, 100'001, 700'000, 9 << 20, (9 << 20) + 77}) {
    for (int64_t offset : {0, 1, 33}) {
      const Bytes source(size, (offset * 2) % 64);
      for (int64_t i = 0; i < size; ++i) source.data()[i] = static_cast<char>(random());
      const GuardedOutput output(size, offset);
      for_each_isa([&] {
        for (int threads : {1, 3}) {
          output.clear();
          kernels::copy(output.data(), source.data(), static_cast<size_t>(size), threads);
          CHECK(size == 0 ||
                std::memcmp(output.data(), source.data(), static_cast<size_t>(size)) == 0);
          CHECK(output.guards_untouched());
        }
      });
    }
  }
}

#if defined(__SSE__)
TEST(callers_floating_point_mode_does_not_matter_and_comes_back) {
  std::mt19937 random(11);
  const RankCase ranks(DType::kFloat32, 3, 400'000, 0, random);
  const std::vector<char> ranks_want = reference::rank_reduce(ranks.args);
  TopkReduceArgs shape;
  shape.tokens = 700;
  shape.slots = 4;
  shape.hidden = 1000;
  const TopkCase topk(shape, true, false, 0, random);
  const std::vector<char> topk_want = reference::topk_reduce(topk.args);
  const unsigned before = _mm_getcsr();
  // Flush to zero, denormals are zero, round up.
  const unsigned hostile = (before & ~0x6000u) | 0x8040u | 0x4000u;
  for_each_isa([&] {
    for (int threads : {1, 3}) {
      _mm_setcsr(hostile);
      kernels::rank_reduce(ranks.args, threads);
      kernels::topk_reduce(topk.args, threads);
      const unsigned after = _mm_getcsr();
      _mm_setcsr(before);
      CHECK_EQ(after & 0xffc0u, hostile & 0xffc0u);
      CHECK_EQ(reference::first_difference(DType::kFloat32, ranks.output.data(), ranks_want), -1);
      CHECK_EQ(reference::first_difference(DType::kBFloat16, topk.output.data(), topk_want), -1);
    }
  });
}
#endif

TEST(isa_can_be_chosen) {
  const std::vector<std::string> isas = kernels::available_isas();
  CHECK_EQ(isas.back(), "plain");
  for_each_isa(
      [&] { CHECK(std::find(isas.begin(), isas.end(), kernels::isa_name()) != isas.end()); });
  CHECK_THROWS_WITH(kernels::set_isa("mmx"), InvalidArgument, "'mmx'");
  CHECK_THROWS_WITH(kernels::set_isa(""), InvalidArgument, "plain");
}

TEST(concurrent_callers_and_forked_children) {
  std::mt19937 random(12);
  const RankCase c(DType::kBFloat16, 4, 700'000, 0, random);
  const std::vector<char> want = reference::rank_reduce(c.args);
  c.check(want, 3);  // the team is running now

#if defined(__SANITIZE_THREAD__)
  const int child_threads = 1;  // the sanitizer allows no thread in a child of a threaded process
#else
  const int child_threads = 3;
#endif
  for (int i = 0; i < 3; ++i) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      c.check(want, child_threads);
      c.check(want, child_threads);
      if (i > 0) std::exit(0);  // joins the child's own team
      _exit(0);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
  }

  std::vector<std::thread> callers;
  std::vector<std::unique_ptr<RankCase>> cases;
  for (int i = 0; i < 3; ++i) {
    cases.push_back(std::make_unique<RankCase>(DType::kBFloat16, 2, 800'000, 0, random));
  }
  for (const auto& one : cases) {
    callers.emplace_back([&one] {
      for (int repeat = 0; repeat < 20; ++repeat) kernels::rank_reduce(one->args, 3);
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const auto& one : cases) {
    const std::vector<char> expected = reference::rank_reduce(one->args);
    CHECK_EQ(reference::first_difference(DType::kBFloat16, one->output.data(), expected), -1);
  }
}

}  // namespace
}  // namespace symmoe

int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
