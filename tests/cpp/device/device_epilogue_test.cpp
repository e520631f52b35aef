// An epilogue of rows that are there already: the CPU kernel's bits, whatever the steps, numbers,
// lengths and alignments, and nothing read or written beyond the own rows.

#include "epilogue_reference.h"
#include "peer_ranks.h"

namespace symmoe::device_tests {
namespace {

using emulator::Permission;
using kernels::EpilogueLaunch;
using kernels::Quantized;
using reference::EpilogueCase;
using reference::EpilogueReduceArgs;
using reference::EpilogueResult;
using reference::StepChoice;

// Bytes by which memory begins after a boundary: also half and a third of it are whole elements.
constexpr int64_t kOffset = 24;

constexpr StepChoice kFull{.scale = true, .shared = true, .residual = true, .norm = true};

EpilogueLaunch launch_of(const EpilogueReduceArgs& args) {
  return {.input = args.sources[0],
          .output = args.output,
          .steps = args.steps,
          .rows = args.rows,
          .hidden = args.hidden,
          .type = args.type};
}

void run(EpilogueCase& c, const EpilogueLaunch& launch, int multiprocessors = 1) {
  const EpilogueReduceArgs& args = c.args;
  Declared declared;
  declared.add(c.inputs[0].data(), c.inputs[0].size(),
               launch.output == launch.input ? Permission::kWrite : Permission::kReadPeersWrite);
  declared.add(c.shared.data(), c.shared.size(), Permission::kRead);
  declared.add(c.weight.data(), c.weight.size(), Permission::kRead);
  declared.add(c.residual.data(), c.shared.size(), Permission::kWrite);
  declared.add(c.scales.data(), args.rows * 4, Permission::kWrite);
  declared.add(c.output.data(),
               args.rows * args.hidden * static_cast<int64_t>(args.steps.output_size(args.type)),
               Permission::kWrite);
  declared.add(launch.shares.sizes, launch.shares.sizes == nullptr ? 0 : launch.world * 4,
               Permission::kRead);
  CHECK_EQ(kernels::launch_apply_epilogue(launch, multiprocessors, nullptr), 0);
}

// Beside the CPU kernel.
void check(EpilogueCase& c, const std::string& what = "on a device") {
  c.run(1);
  const EpilogueResult want = c.result();
  run(c, launch_of(c.fresh()));
  c.compare(want, what + ", seed " + std::to_string(emulator::options().seed));
}

TEST(epilogue_bits_of_all_steps) {
  std::mt19937 random(21);
  uint32_t sample = 0;
  for (const StepChoice& choice : reference::all_choices()) {
    for (const DType type : reference::kTypes) {
      for (const bool moderate : {true, false}) {
        for (const int64_t hidden : {static_cast<int64_t>(1 + random() % 150), int64_t{136}}) {
          if (++sample % kShare != 0) continue;
          const Schedule schedule(sample % 2 == 0 ? 0 : random());
          const int64_t offset = hidden == 136 ? 0 : kOffset * static_cast<int64_t>(random() % 3);
          EpilogueCase c(choice, type, 1, 2, hidden, offset, random, moderate);
          check(c);
        }
      }
    }
  }
}

TEST(epilogue_of_any_length_and_alignment) {
  std::mt19937 random(22);
  uint32_t sample = 0;
  for (const DType type : reference::kTypes) {
    for (const int64_t hidden : {1, 8, 63, 64, 65, 127, 256, 512, 2048, 2880, 6144}) {
      for (const Quantized to : {Quantized::kNone, Quantized::kInt8, Quantized::kFloat8}) {
        for (const int64_t offset : {int64_t{0}, kOffset, 2 * kOffset}) {
          if (++sample % kShare != 0) continue;
          StepChoice choice = kFull;
          choice.quantized = to;
          choice.wide_weight = offset == kOffset;
          EpilogueCase c(choice, type, 1, 1, hidden, offset, random, true);
          check(c);
        }
      }
    }
  }
}

TEST(epilogue_of_more_rows_than_blocks) {
  std::mt19937 random(23);
  for (const Quantized to : {Quantized::kNone, Quantized::kInt8}) {
    StepChoice choice = kFull;
    choice.quantized = to;
    EpilogueCase c(choice, DType::kBFloat16, 1, kShare == 1 ? 301 : 140, 40, 0, random, true);
    check(c);
  }
}

TEST(epilogue_of_the_longest_rows) {
  std::mt19937 random(24);
  if (kShare != 1) return;
  for (const DType type : reference::kTypes) {
    const int64_t hidden = kernels::kEpilogueRowBytes / DeviceTopk::bytes_of(type);
    for (const int64_t length : {hidden, hidden - 1}) {
      StepChoice choice = kFull;
      choice.quantized = Quantized::kFloat8;
      EpilogueCase c(choice, type, 1, 1, length, 0, random, true);
      check(c);
    }
  }
  // Steps of single elements have no such limit.
  EpilogueCase c({.shared = true, .residual = true}, DType::kFloat32, 1, 1, 50'000, 0, random,
                 true);
  check(c);
}

TEST(epilogue_in_place) {
  std::mt19937 random(25);
  for (const DType type : reference::kTypes) {
    for (const int64_t hidden : {77, 512}) {
      EpilogueCase c(kFull, type, 1, 3, hidden, 0, random, true);
      c.run(1);
      const EpilogueResult want = c.result();
      EpilogueReduceArgs args = c.fresh();
      args.output = c.inputs[0].data();
      run(c, launch_of(args));
      CHECK_EQ(reference::first_difference(type, c.inputs[0].data(), want.output), -1);
      CHECK_EQ(reference::first_difference(type, c.residual.data(), want.residual), -1);
      CHECK(c.output.untouched());
    }
  }
}

// The second of three ranks; rows that only room was made for stay as they were.
TEST(epilogue_of_as_many_rows_as_the_device_says) {
  std::mt19937 random(26);
  for (const int32_t own : {0, 2, 5, -1, 6}) {
    StepChoice choice = kFull;
    choice.quantized = Quantized::kInt8;
    const bool right = own >= 0 && own <= 5;
    EpilogueCase c(choice, DType::kFloat16, 1, 5, 96, 0, random, true);
    c.run(1);
    EpilogueResult want = c.result();
    EpilogueReduceArgs args = c.fresh();
    const EpilogueResult before = c.result();
    const auto keep = [&](std::vector<char>& now, const std::vector<char>& old, int64_t bytes) {
      std::copy(old.begin() + bytes, old.end(), now.begin() + bytes);
    };
    const int64_t rows = right ? own : 0;
    keep(want.output, before.output, rows * 96);
    keep(want.residual, before.residual, rows * 96 * 2);
    keep(want.scales, before.scales, rows * 4);
    const std::vector<int32_t> sizes = {3, own, 1};
    EpilogueLaunch launch = launch_of(args);
    launch.shares = {.sizes = sizes.data(), .padded_to = 0, .rows = 10, .output_rows = 5};
    launch.rank = 1;
    launch.world = 3;
    run(c, launch);
    c.compare(want, std::to_string(own) + " own rows");
  }
}

TEST(epilogue_of_zeros_and_tiny_rows) {
  for (const Quantized to : {Quantized::kInt8, Quantized::kFloat8}) {
    for (const float value : {0.0f, 0x1p-149f, 0x1p-126f, 0x1p-120f, 3.4e38f}) {
      std::mt19937 random(27);
      EpilogueCase c({.quantized = to}, DType::kFloat32, 1, 1, 40, 0, random, true);
      for (int64_t i = 0; i < 40; ++i) {
        const float element = i % 3 == 0 ? value : i % 3 == 1 ? -value / 2 : 0.0f;
        std::memcpy(c.inputs[0].data() + 4 * i, &element, 4);
      }
      check(c);
    }
  }
}

TEST(epilogue_of_nothing) {
  CHECK_EQ(kernels::launch_apply_epilogue({.hidden = 8}, 1, nullptr), 0);
  CHECK_EQ(kernels::launch_apply_epilogue({.rows = 3}, 1, nullptr), 0);
}

// Rows read once and written once.
TEST(epilogue_moves_each_row_once) {
  std::mt19937 random(28);
  constexpr uint64_t kRows = 4;
  constexpr uint64_t kRowBytes = 2048 * 2;
  EpilogueCase c(kFull, DType::kBFloat16, 1, kRows, 2048, 0, random, true);
  const EpilogueLaunch launch = launch_of(c.fresh());
  emulator::reset_counters();
  run(c, launch);
  // Input, shared, residual, and the weights; residual and output.
  CHECK_EQ(emulator::counters().loaded, kRows * kRowBytes * 4);
  CHECK_EQ(emulator::counters().stored, kRows * kRowBytes * 2);
}

}  // namespace
}  // namespace symmoe::device_tests

DEVICE_TEST_MAIN()
