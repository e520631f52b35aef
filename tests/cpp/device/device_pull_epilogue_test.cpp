// Rows pulled from all ranks' windows with an epilogue behind, in one kernel: the CPU kernel's
// bits, beside ranks with other epilogues or none, and nothing written beyond the own rows.

#include "epilogue_reference.h"
#include "pulled_rows.h"

namespace symmoe::device_tests {
namespace {

using kernels::Epilogue;
using kernels::PullEpilogueLaunch;
using kernels::Quantized;
using reference::EpilogueResult;
using reference::StepChoice;

constexpr StepChoice kFull{.scale = true, .shared = true, .residual = true, .norm = true};

// One rank's memory for its epilogue, and the steps.
class RankSteps {
 public:
  RankSteps(const PulledRows& rows, int rank, const StepChoice& choice, int64_t offset,
            std::mt19937& random)
      : rows_(rows),
        rank_(rank),
        count_(rows.shape().shares.count(rank)),
        shared_(bytes(), offset * size()),
        before_(bytes()),
        weight_(rows.shape().hidden * (choice.wide_weight ? 4 : size())),
        residual_(bytes(), offset * size()),
        scales_(count_ * 4, 0),
        output_(count_ * rows.shape().hidden * (choice.quantized == Quantized::kNone ? size() : 1),
                offset * size()) {
    const DType type = rows.shape().type;
    steps_ = {.shared = choice.shared ? shared_.data() : nullptr,
              .residual = choice.residual ? residual_.data() : nullptr,
              .norm_weight = choice.norm ? weight_.data() : nullptr,
              .scales = reinterpret_cast<float*>(scales_.data()),
              .scale = 1.7f,
              .eps = 1e-6f,
              .has_scale = choice.scale,
              .scale_shared = choice.scale_shared,
              .weight_type = choice.wide_weight ? DType::kFloat32 : type,
              .quantized = choice.quantized};
    reference::fill_moderately(shared_, type, random);
    reference::fill_moderately(before_, type, random);
    reference::fill_moderately(weight_, steps_.weight_type, random);
    clear();
  }

  PullEpilogueLaunch launch(const PullLaunch& pull) const {
    PullEpilogueLaunch launch{pull, steps_};
    launch.pull.output = output_.data();
    return launch;
  }

  void declare(Declared& declared) const {
    declared.add(shared_.data(), shared_.size(), Permission::kRead);
    declared.add(weight_.data(), weight_.size(), Permission::kRead);
    declared.add(residual_.data(), shared_.size(), Permission::kWrite);
    declared.add(scales_.data(), count_ * 4, Permission::kWrite);
    declared.add(output_.data(), output_bytes(), Permission::kWrite);
  }

  // What the CPU kernel makes of the same windows.
  void wanted() {
    const int64_t begin = rows_.shape().shares.begin(rank_);
    std::vector<const void*> sources;
    for (int peer = 0; peer < rows_.shape().world; ++peer) {
      sources.push_back(rows_.peers().rows(peer) + begin * rows_.row_bytes());
    }
    kernels::reduce_with_epilogue({.sources = sources.data(),
                                   .masks = rows_.masks().data() + begin,
                                   .ranks = rows_.shape().world,
                                   .output = output_.data(),
                                   .rows = count_,
                                   .hidden = rows_.shape().hidden,
                                   .type = rows_.shape().type,
                                   .steps = steps_},
                                  1);
    want_ = now();
    clear();
  }

  const EpilogueResult& want() const { return want_; }

  void check() const {
    const EpilogueResult got = now();
    const DType type = rows_.shape().type;
    const std::string words = rows_.describe(rank_);
    if (steps_.residual != nullptr) {
      const int64_t at = reference::first_difference(type, got.residual.data(), want_.residual);
      CHECK_MSG(at == -1, words + ": residual at " + std::to_string(at));
    }
    if (steps_.quantized == Quantized::kNone) {
      const int64_t at = reference::first_difference(type, got.output.data(), want_.output);
      CHECK_MSG(at == -1, words + ": output at " + std::to_string(at));
    } else {
      CHECK_MSG(got.output == want_.output, words + ": output");
      CHECK_EQ(reference::first_difference(DType::kFloat32, got.scales.data(), want_.scales), -1);
    }
    for (const GuardedOutput* const memory : {&residual_, &scales_, &output_}) {
      CHECK_MSG(memory->guards_untouched(), words);
    }
  }
  bool untouched() const {
    const EpilogueResult got = now();
    return output_.untouched() && scales_.untouched() &&
           std::memcmp(got.residual.data(), before_.data(), got.residual.size()) == 0;
  }

 private:
  int64_t size() const { return DeviceTopk::bytes_of(rows_.shape().type); }
  int64_t bytes() const { return count_ * rows_.row_bytes(); }
  int64_t output_bytes() const {
    return count_ * rows_.shape().hidden *
           static_cast<int64_t>(steps_.output_size(rows_.shape().type));
  }
  void clear() const {
    output_.clear();
    scales_.clear();
    residual_.clear();
    std::memcpy(residual_.data(), before_.data(), static_cast<size_t>(before_.size()));
  }
  EpilogueResult now() const {
    const auto copy = [](const GuardedOutput& from, int64_t bytes) {
      return std::vector<char>(from.data(), from.data() + bytes);
    };
    return {copy(output_, output_bytes()), copy(residual_, bytes()), copy(scales_, count_ * 4)};
  }

  const PulledRows& rows_;
  int rank_;
  int64_t count_;
  Bytes shared_;
  Bytes before_;
  Bytes weight_;
  GuardedOutput residual_;
  GuardedOutput scales_;
  GuardedOutput output_;
  Epilogue steps_;
  EpilogueResult want_;
};

// All ranks with the steps, but those in `without`.
void check(const PullCase& pull, const StepChoice& choice, uint64_t without, std::mt19937& random) {
  PulledRows rows(pull, random);
  std::vector<std::unique_ptr<RankSteps>> ranks;
  for (int rank = 0; rank < pull.world; ++rank) {
    ranks.push_back(std::make_unique<RankSteps>(rows, rank, choice, pull.output_offset, random));
    ranks.back()->wanted();
  }
  const auto has_none = [&](int rank) { return (without >> rank & 1) != 0; };
  {
    Declared declared;
    rows.declare(declared);
    for (const auto& rank : ranks) rank->declare(declared);
    rows.peers().run([&](int rank) {
      const PullLaunch launch = rows.launch(rank);
      if (has_none(rank)) return kernels::launch_pull_reduce(launch, 1, nullptr);
      return kernels::launch_pull_epilogue(ranks[static_cast<size_t>(rank)]->launch(launch), 1,
                                           nullptr);
    });
  }
  for (int rank = 0; rank < pull.world; ++rank) {
    if (has_none(rank)) {
      rows.check_rank(rank);
    } else {
      CHECK_MSG(rows.peers().fault(rank).kind == Fault::kNone, rows.describe(rank));
      ranks[static_cast<size_t>(rank)]->check();
    }
  }
}

TEST(pull_epilogue_bits_of_every_world_type_and_layout) {
  std::mt19937 random(31);
  uint32_t sample = 0;
  const std::vector<StepChoice> choices = reference::all_choices();
  for (const int world : {1, 2, 3, 8}) {
    for (const DType type : reference::kTypes) {
      for (const int64_t hidden : {8, 13, 1000, 4104}) {
        for (int variant = 0; variant < 6; ++variant, ++sample) {
          if (hidden > 1000 && (variant > 2 || world == 8)) continue;
          if (sample % kShare != 0) continue;
          PullCase pull;
          pull.world = world;
          pull.type = type;
          pull.hidden = hidden;
          pull.shares = random_shares(world, static_cast<int>(sample), random);
          pull.masked = variant % 2 == 1;
          pull.blocks = 1 + static_cast<int>(sample % 3);
          pull.output_offset = variant == 4 ? 1 : 0;
          StepChoice choice = sample % 2 == 0 ? kFull : choices[random() % choices.size()];
          if (sample % 3 == 0) choice.quantized = Quantized::kInt8;
          const Schedule schedule(sample % 2 == 0 ? 0 : random());
          const BlocksAtOnce at_once(sample % 4 == 3);
          const uint64_t without = variant == 5 ? random() : 0;
          check(pull, choice, without, random);
        }
      }
    }
  }
}

// The own share of the window becomes the result, whose other rows peers still read.
TEST(pull_epilogue_over_the_own_share) {
  std::mt19937 random(32);
  PullCase pull;
  pull.world = 3;
  pull.shares = {Layout::kHost, {4, 1, 3}};
  PulledRows rows(pull, random);
  std::vector<std::unique_ptr<RankSteps>> ranks;
  for (int rank = 0; rank < pull.world; ++rank) {
    ranks.push_back(std::make_unique<RankSteps>(rows, rank, kFull, 0, random));
    ranks.back()->wanted();
  }
  rows.peers().run([&](int rank) {
    PullEpilogueLaunch launch = ranks[static_cast<size_t>(rank)]->launch(rows.launch(rank));
    launch.pull.output = rows.peers().rows(rank) + pull.shares.begin(rank) * rows.row_bytes();
    return kernels::launch_pull_epilogue(launch, 1, nullptr);
  });
  for (int rank = 0; rank < pull.world; ++rank) {
    const char* const got = rows.peers().rows(rank) + pull.shares.begin(rank) * rows.row_bytes();
    CHECK_EQ(reference::first_difference(pull.type, got,
                                         ranks[static_cast<size_t>(rank)]->want().output),
             -1);
  }
}

// Ranks meet over sizes that do not fit, and nobody's memory changes.
TEST(pull_epilogue_with_wrong_sizes_touches_nothing) {
  std::mt19937 random(33);
  PullCase pull;
  pull.shares = {Layout::kPackedOnDevice, {3, 2}};
  PulledRows rows(pull, random);
  StepChoice choice = kFull;
  choice.quantized = Quantized::kFloat8;
  const std::vector<int32_t> wrong = {-1, 2};
  std::vector<std::unique_ptr<RankSteps>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::make_unique<RankSteps>(rows, rank, choice, 0, random));
  }
  rows.peers().run([&](int rank) {
    PullEpilogueLaunch launch = ranks[static_cast<size_t>(rank)]->launch(rows.launch(rank));
    launch.pull.shares.sizes = wrong.data();
    return kernels::launch_pull_epilogue(launch, 1, nullptr);
  });
  for (int rank = 0; rank < 2; ++rank) {
    CHECK_EQ(rows.peers().fault(rank).kind, Fault::kSizesWrong);
    CHECK(ranks[static_cast<size_t>(rank)]->untouched());
  }
}

TEST(pull_epilogue_gives_up_with_its_peers) {
  std::mt19937 random(34);
  PullCase pull;
  pull.shares = {Layout::kHost, {2, 2}};
  PulledRows rows(pull, random);
  std::vector<std::unique_ptr<RankSteps>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::make_unique<RankSteps>(rows, rank, kFull, 0, random));
  }
  // Another call than the peer's.
  rows.peers().run([&](int rank) {
    PullEpilogueLaunch launch = ranks[static_cast<size_t>(rank)]->launch(rows.launch(rank));
    launch.pull.signature += static_cast<uint32_t>(rank);
    return kernels::launch_pull_epilogue(launch, 1, nullptr);
  });
  for (int rank = 0; rank < 2; ++rank) {
    CHECK_EQ(rows.peers().fault(rank).kind, Fault::kCallsDiffer);
    CHECK(ranks[static_cast<size_t>(rank)]->untouched());
  }
}

}  // namespace
}  // namespace symmoe::device_tests

DEVICE_TEST_MAIN()
