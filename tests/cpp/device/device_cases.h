#pragma once

// One launch of a device kernel with its memory, checked against the CPU kernel. The emulator is
// told of every piece of memory, so that it sees an access outside of them in every build.

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/device/emulator/memory.h"
#include "kernels/device/emulator/options.h"
#include "kernels/device/launch.h"
#include "kernels_cases.h"
#include "kernels_reference.h"

namespace symmoe::device_tests {

using kernels::CopyLaunch;
using kernels::Fault;
using kernels::RankReduceLaunch;
using kernels::TopkReduceLaunch;
using reference::Bytes;
using reference::GuardedOutput;

// Memory that kernels know, for as long as it lives.
class Declared {
 public:
  Declared() = default;
  ~Declared() { emulator::forget_memory(); }
  Declared(const Declared&) = delete;
  Declared& operator=(const Declared&) = delete;
  void add(const void* memory, int64_t bytes, emulator::Permission permission) {
    emulator::declare_memory(memory, static_cast<size_t>(bytes), permission);
  }
};

// The order in which threads run, for as long as it lives.
class Schedule {
 public:
  explicit Schedule(uint64_t seed) { emulator::options().seed = seed; }
  ~Schedule() { emulator::options().seed = 0; }
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;
};

struct Offsets {  // in elements, from a 64-byte boundary
  int64_t input = 0;
  int64_t output = 0;
};

struct DeviceTopk {
  TopkReduceLaunch launch;
  Bytes input;
  Bytes weights;
  Bytes index;
  GuardedOutput output;
  Fault fault{};

  DeviceTopk(const TopkReduceLaunch& shape, bool weighted, bool indexed, Offsets offsets,
             std::mt19937& random)
      : launch(shape),
        input((indexed ? shape.pairs : shape.tokens * shape.slots) * shape.hidden *
                  bytes_of(shape.input_type),
              offsets.input * bytes_of(shape.input_type)),
        weights(shape.tokens * shape.slots * bytes_of(shape.weights_type),
                offsets.input * bytes_of(shape.weights_type)),
        index(shape.tokens * shape.slots * (shape.index_is_64bit ? 8 : 4), offsets.output * 8),
        output(output_bytes(), offsets.output * bytes_of(shape.output_type)) {
    reference::fill(input, launch.input_type, random);
    reference::fill(weights, launch.weights_type, random);
    launch.input = input.data();
    launch.output = output.data();
    launch.fault = &fault;
    if (weighted) launch.weights = weights.data();
    if (indexed) launch.index = index.data();
    for (int64_t i = 0; i < launch.tokens * launch.slots; ++i) {
      // The second token has no row at all.
      const bool absent = i / launch.slots == 1 || random() % 4 == 0 || launch.pairs == 0;
      set_index(i,
                absent ? -1 : static_cast<int64_t>(random() % static_cast<uint64_t>(launch.pairs)));
    }
  }

  static int64_t bytes_of(DType type) { return static_cast<int64_t>(size_of(type)); }
  int64_t output_bytes() const {
    return launch.tokens * launch.hidden * bytes_of(launch.output_type);
  }

  void set_index(int64_t position, int64_t value) const {
    if (launch.index_is_64bit) {
      std::memcpy(index.data() + position * 8, &value, 8);
    } else {
      const auto narrow = static_cast<int32_t>(value);
      std::memcpy(index.data() + position * 4, &narrow, 4);
    }
  }

  int64_t index_at(int64_t position) const {
    if (launch.index_is_64bit) {
      int64_t value;
      std::memcpy(&value, index.data() + position * 8, 8);
      return value;
    }
    int32_t narrow;
    std::memcpy(&narrow, index.data() + position * 4, 4);
    return narrow;
  }

  std::string describe() const {
    return std::string(name_of(launch.input_type)) + " -> " + name_of(launch.output_type) +
           ", weights " + (launch.weights == nullptr ? "none" : name_of(launch.weights_type)) +
           ", index " +
           (launch.index == nullptr ? "none"
            : launch.index_is_64bit ? "int64"
                                    : "int32") +
           ", " + std::to_string(launch.tokens) + "x" + std::to_string(launch.slots) + "x" +
           std::to_string(launch.hidden) + ", input at " +
           std::to_string(reinterpret_cast<uintptr_t>(launch.input) % 64) + ", seed " +
           std::to_string(emulator::options().seed);
  }

  kernels::TopkReduceArgs cpu_args(void* to) const {
    kernels::TopkReduceArgs args;
    args.input = launch.input;
    args.weights = launch.weights;
    args.index = launch.index;
    args.output = to;
    args.tokens = launch.tokens;
    args.slots = launch.slots;
    args.hidden = launch.hidden;
    args.pairs = launch.pairs;
    args.scale = launch.scale;
    args.has_scale = launch.has_scale;
    args.input_type = launch.input_type;
    args.output_type = launch.output_type;
    args.weights_type = launch.weights_type;
    args.index_is_64bit = launch.index_is_64bit;
    return args;
  }

  // What the CPU kernel makes of the same problem.
  std::vector<char> wanted() const {
    std::vector<char> want(static_cast<size_t>(output_bytes()));
    kernels::topk_reduce(cpu_args(want.data()), 1);
    return want;
  }

  void run(int multiprocessors) {
    Declared declared;
    declared.add(input.data(), input.size(), emulator::Permission::kRead);
    declared.add(weights.data(), weights.size(), emulator::Permission::kRead);
    declared.add(index.data(), index.size(), emulator::Permission::kRead);
    declared.add(output.data(), output_bytes(), emulator::Permission::kWrite);
    declared.add(&fault, sizeof fault, emulator::Permission::kWrite);
    output.clear();
    CHECK_EQ(kernels::launch_topk_reduce(launch, multiprocessors, nullptr), 0);
  }

  void check(const std::vector<char>& want, int multiprocessors) {
    run(multiprocessors);
    const int64_t at = reference::first_difference(launch.output_type, output.data(), want);
    CHECK_MSG(at == -1, describe() + " at " + std::to_string(at));
    CHECK_MSG(output.guards_untouched(), describe());
  }
};

}  // namespace symmoe::device_tests

// Tests stand alone, or together in one program with one main.
#if defined(SYMMOE_ONE_PROGRAM)
#define DEVICE_TEST_MAIN()
#else
#define DEVICE_TEST_MAIN() \
  int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
#endif
