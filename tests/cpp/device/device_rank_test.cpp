// The sum over ranks: the CPU kernel's bits for every type, number of ranks, length and alignment.

#include <limits>

#include "device_cases.h"

namespace symmoe::device_tests {
namespace {

using emulator::Permission;

struct DeviceRanks {
  RankReduceLaunch launch;
  Bytes own;
  Bytes gathered;
  GuardedOutput output;

  // How far, in elements, own, gathered and output stand from a 64-byte boundary.
  struct Offsets {
    int64_t own = 0;
    int64_t gathered = 0;
    int64_t output = 0;
  };

  DeviceRanks(DType type, int ranks, int own_rank, int64_t count, int64_t stride, Offsets offsets,
              std::mt19937& random)
      : own(count * DeviceTopk::bytes_of(type), offsets.own * DeviceTopk::bytes_of(type)),
        gathered(((ranks - 1) * stride + count) * DeviceTopk::bytes_of(type),
                 offsets.gathered * DeviceTopk::bytes_of(type)),
        output(count * DeviceTopk::bytes_of(type), offsets.output * DeviceTopk::bytes_of(type)) {
    reference::fill(own, type, random);
    reference::fill(gathered, type, random);
    launch.own = own.data();
    launch.gathered = gathered.data();
    launch.output = output.data();
    launch.count = count;
    launch.stride = stride;
    launch.ranks = ranks;
    launch.own_rank = own_rank;
    launch.type = type;
  }

  std::string describe() const {
    return std::string(name_of(launch.type)) + ", rank " + std::to_string(launch.own_rank) +
           " of " + std::to_string(launch.ranks) + ", count " + std::to_string(launch.count) +
           ", stride " + std::to_string(launch.stride);
  }

  int64_t bytes() const { return launch.count * DeviceTopk::bytes_of(launch.type); }

  std::vector<char> wanted() const {
    std::vector<const void*> sources;
    for (int rank = 0; rank < launch.ranks; ++rank) {
      sources.push_back(rank == launch.own_rank
                            ? own.data()
                            : gathered.data() +
                                  rank * launch.stride * DeviceTopk::bytes_of(launch.type));
    }
    std::vector<char> want(static_cast<size_t>(bytes()));
    kernels::rank_reduce({sources.data(), launch.ranks, want.data(), launch.count, launch.type}, 1);
    return want;
  }

  void check(int multiprocessors) {
    const std::vector<char> want = wanted();
    {
      Declared declared;
      // Peers wrote these rows, and the rows of own_rank among them are nobody's.
      declared.add(own.data(), own.size(), Permission::kReadPeersWrite);
      for (int rank = 0; rank < launch.ranks; ++rank) {
        if (rank == launch.own_rank) continue;
        declared.add(gathered.data() + rank * launch.stride * DeviceTopk::bytes_of(launch.type),
                     bytes(), Permission::kReadPeersWrite);
      }
      declared.add(launch.output, bytes(), Permission::kWrite);
      output.clear();
      CHECK_EQ(kernels::launch_rank_reduce(launch, multiprocessors, nullptr), 0);
    }
    const int64_t at =
        reference::first_difference(launch.type, static_cast<const char*>(launch.output), want);
    CHECK_MSG(at == -1, describe() + " at " + std::to_string(at));
    CHECK_MSG(output.guards_untouched(), describe());
  }
};

TEST(rank_bits_of_every_type_and_alignment) {
  std::mt19937 random(1);
  int sample = 0;
  for (const DType type : reference::kTypes) {
    for (const int ranks : {1, 2, 3, 4, 5, 8}) {
      for (const int64_t count : {1, 7, 8, 64, 517, 1000}) {
        for (int variant = 0; variant < 6; ++variant, ++sample) {
          // All on 16-byte boundaries, all equally far from one, or one of them elsewhere.
          const int64_t offset = variant == 0 ? 0 : 1 + sample % 7;
          DeviceRanks::Offsets offsets{offset, offset, offset};
          if (variant == 2) offsets.own += 1;
          if (variant == 3) offsets.gathered += 1;
          if (variant == 4) offsets.output += 1;
          const int64_t stride = variant == 5 ? count : (count + 7) / 8 * 8;
          DeviceRanks sum(type, ranks, sample % ranks, count, stride, offsets, random);
          const Schedule schedule(sample % 2 == 0 ? 0 : random());
          sum.check(1 + sample % 2);
        }
      }
    }
  }
}

TEST(rank_more_elements_than_threads) {
  std::mt19937 random(2);
  for (const int64_t offset : {0, 1}) {
    DeviceRanks sum(DType::kBFloat16, 2, 1, 160'001, 160'008, {offset, offset, 0}, random);
    sum.check(1);
  }
}

TEST(rank_sum_over_a_source) {
  std::mt19937 random(3);
  DeviceRanks sum(DType::kFloat16, 3, 1, 333, 336, {}, random);
  sum.launch.output = sum.own.data();
  sum.check(2);
}

TEST(rank_signed_zeros_and_nan) {
  std::mt19937 random(4);
  const float values[] = {0.0f,
                          -0.0f,
                          0x1p-149f,
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(),
                          -3.3e38f,
                          1.0f};
  for (const DType type : reference::kTypes) {
    DeviceRanks sum(type, 2, 0, 64, 64, {}, random);
    const auto size = DeviceTopk::bytes_of(type);
    for (int64_t i = 0; i < 64; ++i) {
      reference::encode(type, values[i % 8], sum.own.data() + i * size);
      reference::encode(type, values[i / 8], sum.gathered.data() + (64 + i) * size);
    }
    sum.check(1);
  }
}

TEST(rank_nothing_to_do) {
  std::mt19937 random(5);
  DeviceRanks sum(DType::kBFloat16, 2, 0, 8, 8, {}, random);
  sum.launch.count = 0;
  sum.output.clear();
  CHECK_EQ(kernels::launch_rank_reduce(sum.launch, 4, nullptr), 0);
  CHECK(sum.output.untouched());
}

TEST(rank_moves_each_byte_once) {
  std::mt19937 random(6);
  for (const int64_t offset : {0, 3}) {
    DeviceRanks sum(DType::kBFloat16, 4, 2, 4099, 4104, {offset, offset, 3}, random);
    emulator::reset_counters();
    sum.check(2);
    CHECK_EQ(emulator::counters().loaded, static_cast<uint64_t>(4 * sum.bytes()));
    CHECK_EQ(emulator::counters().stored, static_cast<uint64_t>(sum.bytes()));
  }
}

}  // namespace
}  // namespace symmoe::device_tests

DEVICE_TEST_MAIN()
