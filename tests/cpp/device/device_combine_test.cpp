// From expert output to the own rows in one launch: the bits of the CPU's top-k sum followed by its
// sum over ranks, dense and routed.

#include "routed_cases.h"

namespace symmoe::device_tests {
namespace {

using emulator::Permission;

struct CombineCase {
  int world = 2;
  DType input = DType::kBFloat16;
  DType type = DType::kBFloat16;
  int64_t hidden = 64;
  int64_t slots = 8;
  bool routed = false;
  bool indexed = false;
  int blocks = 2;
  int64_t offset = 0;  // of input and output, in elements
  Shares shares;
};

class Combined {
 public:
  Combined(const CombineCase& given, std::mt19937& random)
      : case_(given),
        peers_(given.world, given.shares.rows() * row_bytes()),
        routed_(given.shares.rows(), given.slots, 4 * given.world, given.world, false, random) {
    routed_.share(given.shares, 0);
    routed_.check(1);
    for (int rank = 0; rank < case_.world; ++rank) {
      TopkReduceLaunch shape;
      shape.tokens = case_.shares.rows();
      shape.slots = case_.slots;
      shape.hidden = case_.hidden;
      shape.pairs = case_.indexed ? 9 : 0;
      shape.input_type = case_.input;
      shape.output_type = case_.type;
      shape.has_scale = case_.indexed;
      shape.scale = 0.75f;
      sums_.push_back(std::make_unique<DeviceTopk>(shape, true, case_.indexed,
                                                   Offsets{case_.offset, 0}, random));
      outputs_.push_back(std::make_unique<GuardedOutput>(
          case_.shares.count(rank) * row_bytes(), case_.offset * DeviceTopk::bytes_of(case_.type)));
    }
  }

  void check() {
    {
      Declared declared;
      declare(declared);
      peers_.run([&](int rank) { return kernels::launch_combine(launch(rank), 1, nullptr); });
    }
    check_windows();
    for (int rank = 0; rank < case_.world; ++rank) {
      CHECK_MSG(peers_.fault(rank).kind == Fault::kNone, describe(rank));
      const GuardedOutput& output = *outputs_[static_cast<size_t>(rank)];
      const int64_t at = reference::first_difference(case_.type, output.data(), want(rank));
      CHECK_MSG(at == -1, describe(rank) + " at " + std::to_string(at));
      CHECK_MSG(output.guards_untouched(), describe(rank));
    }
  }

 private:
  int64_t row_bytes() const { return case_.hidden * DeviceTopk::bytes_of(case_.type); }
  DeviceTopk& sum(int rank) const { return *sums_[static_cast<size_t>(rank)]; }
  uint64_t mask(int64_t row) const {
    return case_.routed ? routed_.masks[static_cast<size_t>(row)] : all_ranks(case_.world);
  }

  CombineLaunch launch(int rank) {
    CombineLaunch launch;
    launch.sum = sum(rank).launch;
    launch.sum.output = peers_.rows(rank);
    launch.pull = peers_.pull(rank, case_.type, case_.hidden, case_.blocks);
    launch.pull.shares = case_.shares.for_kernel(rank);
    outputs_[static_cast<size_t>(rank)]->clear();
    launch.pull.output = outputs_[static_cast<size_t>(rank)]->data();
    if (case_.routed) {
      launch.sum.routing = routed_.view(rank, true);
      launch.pull.mask = routed_.masks.data();
      launch.pull.mask_hash = &routed_.hash;
    }
    return launch;
  }

  void declare(Declared& declared) {
    peers_.declare(declared);
    for (int rank = 0; rank < case_.world; ++rank) {
      const DeviceTopk& topk = sum(rank);
      if (case_.routed) {
        declare_own_slots(declared, topk, routed_, rank);
      } else {
        declared.add(topk.input.data(), topk.input.size(), Permission::kRead);
        declared.add(topk.weights.data(), topk.weights.size(), Permission::kRead);
        declared.add(topk.index.data(), topk.index.size(), Permission::kRead);
      }
      // Rows of shares; what lies between them is nobody's.
      for (int owner = 0; owner < case_.world; ++owner) {
        declared.add(peers_.rows(rank) + case_.shares.begin(owner) * row_bytes(),
                     case_.shares.count(owner) * row_bytes(), Permission::kWrite);
      }
      declared.add(outputs_[static_cast<size_t>(rank)]->data(),
                   case_.shares.count(rank) * row_bytes(), Permission::kWrite);
      declared.add(&topk.fault, sizeof(Fault), Permission::kWrite);
    }
    declared.add(&routed_.hash, sizeof(MaskHash), Permission::kRead);
    declared.add(case_.shares.sizes.data(), case_.world * 4, Permission::kRead);
  }

  // Each rank's rows, and nothing else, are in its window.
  void check_windows() const {
    for (int rank = 0; rank < case_.world; ++rank) {
      std::vector<char> want(static_cast<size_t>(case_.shares.rows() * row_bytes()), kPoison);
      const std::vector<char> sums =
          case_.routed ? routed_sum(sum(rank), routed_, rank) : sum(rank).wanted();
      for (int owner = 0; owner < case_.world; ++owner) {
        for (int64_t i = 0; i < case_.shares.count(owner); ++i) {
          const int64_t row = case_.shares.begin(owner) + i;
          if ((mask(row) >> rank & 1) == 0) continue;
          std::copy_n(sums.begin() + row * row_bytes(), row_bytes(),
                      want.begin() + row * row_bytes());
        }
      }
      for (int64_t row = 0; row < case_.shares.rows(); ++row) {
        const char* const got = peers_.rows(rank) + row * row_bytes();
        const auto begin = want.begin() + row * row_bytes();
        if (*begin == kPoison && std::equal(begin, begin + row_bytes(), got)) continue;
        const std::vector<char> wanted(begin, begin + row_bytes());
        CHECK_MSG(reference::first_difference(case_.type, got, wanted) == -1, describe(rank));
      }
    }
  }

  std::vector<char> want(int rank) const {
    std::vector<char> rows(static_cast<size_t>(case_.shares.count(rank) * row_bytes()));
    for (int64_t i = 0; i < case_.shares.count(rank); ++i) {
      const int64_t row = case_.shares.begin(rank) + i;
      wanted_row(peers_, mask(row), case_.type, case_.hidden, row, rows.data() + i * row_bytes());
    }
    return rows;
  }

  std::string describe(int rank) const {
    return sum(rank).describe() + ", rank " + std::to_string(rank) + " of " +
           std::to_string(case_.world) + (case_.routed ? ", routed" : "") + ", blocks " +
           std::to_string(case_.blocks);
  }

  CombineCase case_;
  Peers peers_;
  Routed routed_;
  std::vector<std::unique_ptr<DeviceTopk>> sums_;
  std::vector<std::unique_ptr<GuardedOutput>> outputs_;
};

TEST(combine_bits_of_every_world_and_layout) {
  std::mt19937 random(41);
  uint32_t sample = 0;
  for (const int world : {1, 2, 3, 4, 8}) {
    for (const int64_t slots : {1, 3, 8, 35}) {
      for (const int64_t hidden : {48, 13}) {
        for (const bool routed : {false, true}) {
          if (++sample % ((kShare + 3) / 4) != 0) continue;
          CombineCase combine;
          combine.world = world;
          combine.hidden = hidden;
          combine.slots = slots;
          combine.routed = routed;
          combine.indexed = sample % 3 == 1;
          combine.blocks = 1 + sample % 3;
          combine.shares = random_shares(world, static_cast<int>(sample), random);
          const Schedule schedule(sample % 2 == 0 ? 0 : random());
          const BlocksAtOnce at_once(sample % 4 == 3);
          Combined(combine, random).check();
        }
      }
    }
  }
}

TEST(combine_bits_of_every_type) {
  std::mt19937 random(42);
  for (const DType input : reference::kTypes) {
    for (const DType type : reference::kTypes) {
      if (kShare > 1 && input != type) continue;
      for (const int64_t slots : {2, 8}) {
        for (const int64_t offset : {0, 1}) {
          CombineCase combine;
          combine.input = input;
          combine.type = type;
          combine.slots = slots;
          combine.offset = offset;
          combine.routed = slots == 2;
          combine.shares = {Layout::kHost, {2, 1}};
          Combined(combine, random).check();
        }
      }
    }
  }
}

// Several chunks of columns, of which the last one is not full, in one piece or two.
TEST(combine_long_rows) {
  std::mt19937 random(43);
  for (const DType type : {DType::kBFloat16, DType::kFloat32}) {
    for (const int64_t hidden : {4104, 4099}) {
      CombineCase combine;
      combine.input = combine.type = type;
      combine.hidden = hidden;
      combine.slots = 2;
      combine.routed = true;
      combine.blocks = 3;
      combine.shares = {Layout::kPackedOnDevice, {2, 3}};
      Combined(combine, random).check();
    }
  }
}

TEST(combine_after_the_ranks_have_parted) {
  std::mt19937 random(44);
  const Peers peers(1, 64);
  CombineLaunch launch;
  launch.pull = peers.pull(0, DType::kFloat32, 16, 1);
  launch.sum.output = peers.rows(0);
  launch.sum.output_type = DType::kFloat32;
  launch.sum.tokens = 1;
  launch.sum.slots = 1;
  launch.sum.hidden = 16;
  peers.page(0).broken = 1;
  CHECK_EQ(kernels::launch_combine(launch, 1, nullptr), 0);
  CHECK_EQ(peers.fault(0).kind, uint32_t{Fault::kPeerGaveUp});

  peers.page(0).broken = 0;
  peers.forget_window(0, 0);
  CHECK_EQ(kernels::launch_combine(launch, 1, nullptr), 0);
  CHECK_EQ(peers.page(0).broken, uint32_t{1});
  CHECK_EQ(*peers.rows(0), kPoison);
}

}  // namespace
}  // namespace symmoe::device_tests

DEVICE_TEST_MAIN()
