// The top-k kernel: the CPU kernel's bits for every type, number of slots, alignment and schedule.

#include <cmath>
#include <limits>
#include <vector>

#include "device_cases.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace symmoe::device_tests {
namespace {

using reference::kTypes;

TEST(topk_bits_of_every_type_and_slot_count) {
  // Rows of whole vectors have multiples of 8 columns; of the others, some have multiples of 4.
  constexpr int64_t kHidden[] = {7, 129, 300, 1, 12, 523};
  constexpr int64_t kOffsets[] = {0, 0, 8, 1, 3};
  std::mt19937 random(1);
  int sample = 0;
  for (const DType in : kTypes) {
    for (const DType out : kTypes) {
      for (const int64_t slots : {1, 2, 3, 4, 6, 8, 16, 22, 33}) {
        for (int variant = 0; variant < 8; ++variant, ++sample) {
          // The first four variants have whole vectors, the others have not.
          const bool whole = variant < 4;
          TopkReduceLaunch shape;
          shape.tokens = 1 + sample % 4;
          shape.slots = slots;
          shape.hidden = whole ? 8 * (1 + random() % 70) : kHidden[random() % std::size(kHidden)];
          shape.pairs = 1 + sample % 5;
          shape.input_type = in;
          shape.output_type = out;
          shape.weights_type = sample % 2 == 0 ? DType::kFloat32 : in;
          shape.index_is_64bit = random() % 2 == 0;
          shape.has_scale = random() % 2 == 0;
          shape.scale = -0.37f;
          Offsets offsets;
          if (!whole) {
            offsets.input = kOffsets[random() % std::size(kOffsets)];
            offsets.output = kOffsets[random() % std::size(kOffsets)];
          }
          DeviceTopk topk(shape, variant != 1, random() % 2 == 0, offsets, random);
          const std::vector<char> want = topk.wanted();
          const Schedule schedule(sample % 3 == 0 ? 0 : random());
          topk.check(want, 1 + sample % 3);
        }
      }
    }
  }
}

// Rows of several blocks' width, and more rows than blocks.
TEST(topk_bits_of_several_chunks_and_tokens) {
  std::mt19937 random(2);
  for (const int64_t hidden : {2048 + 8, 2 * 2048 + 1}) {
    for (const int64_t slots : {1, 2, 3, 8}) {
      TopkReduceLaunch shape;
      shape.tokens = 40;
      shape.slots = slots;
      shape.hidden = hidden * (slots == 1 ? 4 : 1);
      shape.pairs = 3;
      DeviceTopk topk(shape, true, true, {}, random);
      if (slots == 1) topk.launch.tokens = 3;
      topk.check(topk.wanted(), 1);
    }
  }
}

TEST(topk_bits_of_any_schedule) {
  std::mt19937 random(3);
  TopkReduceLaunch shape;
  shape.tokens = 9;
  shape.slots = 5;
  shape.hidden = 776;
  shape.pairs = 7;
  DeviceTopk topk(shape, true, true, {}, random);
  const std::vector<char> want = topk.wanted();
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const Schedule schedule(seed);
    topk.check(want, 1);
  }
}

// Any shape at all, without and with an index.
TEST(topk_empty_problems) {
  std::mt19937 random(4);
  TopkReduceLaunch shape;
  shape.tokens = 3;
  shape.hidden = 24;
  for (const bool indexed : {false, true}) {
    DeviceTopk no_slot(shape, true, indexed, {}, random);
    no_slot.launch.has_scale = true;
    no_slot.launch.scale = -2.0f;
    no_slot.check(no_slot.wanted(), 2);  // -0
  }
  shape.slots = 2;
  shape.pairs = 0;
  DeviceTopk no_pair(shape, true, true, {}, random);
  no_pair.check(no_pair.wanted(), 2);
  for (const bool no_token : {true, false}) {
    DeviceTopk nothing(shape, true, false, {}, random);
    (no_token ? nothing.launch.tokens : nothing.launch.hidden) = 0;
    nothing.output.clear();
    CHECK_EQ(kernels::launch_topk_reduce(nothing.launch, 2, nullptr), 0);
    CHECK(nothing.output.untouched());
  }
}

// Values whose sums depend on every step: signed zeros, subnormals, overflow, NaN.
TEST(topk_special_values) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float values[] = {0.0f,     -0.0f,   0x1p-149f, -0x1p-149f, 0x1p-126f, 0x1p-24f, -0x1p-25f,
                          65504.0f, 3.3e38f, -3.3e38f,  infinity,   -infinity, nan,      1.0f};
  constexpr int64_t kValues = std::size(values);
  std::mt19937 random(5);
  for (const DType type : kTypes) {
    for (const bool weighted : {false, true}) {
      TopkReduceLaunch shape;
      shape.tokens = 1;
      shape.slots = 2;
      shape.hidden = kValues * kValues + 4;  // a multiple of 8: every pair of values
      shape.input_type = shape.output_type = type;
      DeviceTopk topk(shape, weighted, false, {}, random);
      const auto size = static_cast<int64_t>(size_of(type));
      for (int64_t i = 0; i < shape.hidden; ++i) {
        reference::encode(type, values[i % kValues], topk.input.data() + i * size);
        reference::encode(type, values[i / kValues % kValues],
                          topk.input.data() + (shape.hidden + i) * size);
      }
      for (const float first : {1.0f, -0.5f, 0x1p-30f, 0.0f, infinity}) {
        const float weights[] = {first, -0.75f};
        std::memcpy(topk.weights.data(), weights, sizeof weights);
        topk.check(topk.wanted(), 1);
      }
    }
  }
}

// A wrong index counts as absent, and one of them is reported, whole.
TEST(topk_reports_an_index_out_of_range) {
  std::mt19937 random(6);
  for (const bool wide : {false, true}) {
    TopkReduceLaunch shape;
    shape.tokens = 6;
    shape.slots = 4;
    shape.hidden = 40;
    shape.pairs = 5;
    shape.index_is_64bit = wide;
    DeviceTopk topk(shape, true, true, {}, random);
    const int64_t bad[][2] = {
        {2, 5}, {11, -2}, {17, wide ? int64_t{1} << 40 : INT32_MAX}, {23, INT32_MIN}};
    for (const auto& [position, value] : bad) topk.set_index(position, -1);
    const std::vector<char> want = topk.wanted();
    topk.check(want, 2);
    CHECK_EQ(topk.fault.kind, uint32_t{Fault::kNone});
    for (const auto& [position, value] : bad) topk.set_index(position, value);
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const Schedule schedule(seed);
      topk.fault = {};
      topk.check(want, 2);
      CHECK_EQ(topk.fault.kind, uint32_t{Fault::kIndexOutOfRange});
      const int64_t position = topk.fault.subject * shape.slots + topk.fault.detail;
      CHECK(position == 2 || position == 11 || position == 17 || position == 23);
      CHECK_EQ(topk.fault.value, topk.index_at(position));
      const Fault first = topk.fault;
      topk.set_index(position, -1);
      topk.check(want, 2);  // a report that nobody has taken stays, whatever else is wrong
      CHECK_EQ(std::memcmp(&first, &topk.fault, sizeof first), 0);
      topk.fault.kind = Fault::kNone;
      topk.check(want, 2);  // one that was taken makes room for the next
      CHECK_EQ(topk.fault.kind, uint32_t{Fault::kIndexOutOfRange});
      topk.set_index(position, first.value);
    }
    topk.launch.fault = nullptr;
    topk.check(want, 2);
  }
}

// Against sums in double, which know nothing of the order.
TEST(topk_is_close_to_float64) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
  for (const DType in : kTypes) {
    for (const DType out : kTypes) {
      TopkReduceLaunch shape;
      shape.tokens = 2;
      shape.slots = 8;
      shape.hidden = 48;
      shape.input_type = in;
      shape.output_type = out;
      DeviceTopk topk(shape, true, false, {}, random);
      const auto size = static_cast<int64_t>(size_of(in));
      for (int64_t at = 0; at < topk.input.size(); at += size) {
        reference::encode(in, uniform(random), topk.input.data() + at);
      }
      for (int64_t at = 0; at < topk.weights.size(); at += 4) {
        reference::encode(DType::kFloat32, uniform(random), topk.weights.data() + at);
      }
      topk.run(1);
      const double roundings = out == DType::kFloat32   ? 0x1p-21
                               : out == DType::kFloat16 ? 0x1p-11 + 0x1p-21
                                                        : 0x1p-8 + 0x1p-21;
      for (int64_t i = 0; i < shape.tokens * shape.hidden; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < shape.slots; ++k) {
          const int64_t slot = i / shape.hidden * shape.slots + k;
          sum += double{reference::decode(DType::kFloat32, topk.weights.data() + slot * 4)} *
                 reference::decode(
                     in, topk.input.data() + (slot * shape.hidden + i % shape.hidden) * size);
        }
        const double got =
            reference::decode(out, topk.output.data() + i * static_cast<int64_t>(size_of(out)));
        CHECK_MSG(std::fabs(got - sum) <= sum * roundings, topk.describe());
      }
    }
  }
}

#if defined(__SSE__)
// A device has no mode that flushes subnormals, whatever the launching thread has set.
TEST(topk_ignores_the_callers_mode) {
  std::mt19937 random(8);
  TopkReduceLaunch shape;
  shape.tokens = 2;
  shape.slots = 3;
  shape.hidden = 64;
  shape.input_type = shape.output_type = DType::kFloat32;
  DeviceTopk topk(shape, true, false, {}, random);
  const std::vector<char> want = topk.wanted();
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // flush results and operands to zero
  topk.run(1);
  _mm_setcsr(before);
  CHECK_EQ(reference::first_difference(shape.output_type, topk.output.data(), want), -1);
}
#endif

// Each byte that has to move does so once. Only the table of slots is read once per chunk of a row.
TEST(topk_moves_few_bytes) {
  struct Shape {
    int64_t tokens, slots, hidden;
    bool indexed;
  };
  std::mt19937 random(9);
  for (const Shape& s : {Shape{3, 8, 7168, true}, Shape{3, 8, 7168, false}, Shape{4, 1, 2880, true},
                         Shape{2, 22, 4096, true}, Shape{5, 6, 520, true}, Shape{5, 2, 129, false},
                         Shape{3, 33, 2048, true}}) {
    TopkReduceLaunch shape;
    shape.tokens = s.tokens;
    shape.slots = s.slots;
    shape.hidden = s.hidden;
    shape.pairs = s.tokens * s.slots;
    DeviceTopk topk(shape, true, s.indexed, {}, random);
    int64_t present = 0;
    for (int64_t i = 0; i < s.tokens * s.slots; ++i) {
      present += !s.indexed || topk.index_at(i) >= 0 ? 1 : 0;
    }
    emulator::reset_counters();
    topk.run(4);
    const emulator::Counters moved = emulator::counters();
    // A weight is not needed where its slot is absent.
    const auto least = static_cast<double>(present * (s.hidden * 2 + 4) +
                                           (s.indexed ? s.tokens * s.slots * 4 : 0));
    CHECK_EQ(moved.stored, static_cast<uint64_t>(s.tokens * s.hidden * 2));
    CHECK_MSG(static_cast<double>(moved.loaded) >= least, topk.describe());
    const double all = static_cast<double>(moved.loaded + moved.stored);
    const double ratio = all / (least + static_cast<double>(moved.stored));
    std::printf("     %s: %.4f of the fewest bytes\n", topk.describe().c_str(), ratio);
    CHECK_MSG(ratio <= 1.02, topk.describe() + ": " + std::to_string(ratio));
  }
}

}  // namespace
}  // namespace symmoe::device_tests

DEVICE_TEST_MAIN()
