#pragma once

// Ranks that run the kernels which wait for peers, from the kernels' own sources: to be included
// behind whatever changes a word of those. Each rank writes its rows, launches, and looks at the
// sums, call after call.

#include <atomic>
#include <chrono>
#include <cstdio>

#include "device/peer_ranks.h"
#include "kernels/device/combine.cu"
#include "kernels/device/pull_reduce.cu"

namespace pulling {

using namespace symmoe;
using namespace symmoe::device_tests;

// Both pieces of a unit of work have columns, for more than those threads that talk to peers.
constexpr int64_t kHidden = 272;
constexpr int64_t kRows = 2;  // of each rank

// The last rank adds what the others have cancelled out, so that the order of the ranks shows.
inline float value(int rank, int world, uint32_t call) {
  constexpr float kLarge = 0x1p30f;
  if (world < 3) return static_cast<float>(call * 2 + static_cast<uint32_t>(rank));
  return rank == 0 ? kLarge : rank == 1 ? -kLarge : static_cast<float>(call);
}

inline float wanted(int world, uint32_t call) {
  float sum = -0.0f;
  for (int rank = 0; rank < world; ++rank) sum += value(rank, world, call);
  return sum;
}

struct Run {
  int world = 2;
  uint32_t calls = 50;
  int pause_ms = 0;      // of the last rank, before it writes
  bool combine = false;  // top-k sums in the same launch write the rows
  // For what differs from a plain call.
  std::function<void(PullLaunch& launch)> change = [](PullLaunch&) {};
};

// The exit status. Races are the sanitizer's to report, but wrong sums count as well.
inline int run(const Run& how) {
  emulator::options().seed = 1;
  const Peers peers(how.world, how.world * kRows * kHidden * 4);
  std::atomic<int> wrong = 0;
  peers.run([&](int rank) {
    std::vector<float> output(kRows * kHidden);
    std::vector<float> input(static_cast<size_t>(how.world * kRows * kHidden));
    CombineLaunch launch;
    launch.pull = peers.pull(rank, DType::kFloat32, kHidden, 1);
    launch.pull.output = output.data();
    for (int owner = 0; owner < how.world; ++owner) {
      launch.pull.shares.begins[owner] = owner * kRows;
      launch.pull.shares.counts[owner] = kRows;
    }
    how.change(launch.pull);
    launch.sum.input = input.data();
    launch.sum.output = peers.rows(rank);
    launch.sum.tokens = how.world * kRows;
    launch.sum.slots = 1;
    launch.sum.hidden = kHidden;
    launch.sum.input_type = launch.sum.output_type = DType::kFloat32;
    for (uint32_t call = 1; call <= how.calls; ++call) {
      if (rank == how.world - 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(how.pause_ms));
      }
      float* const rows = how.combine ? input.data() : reinterpret_cast<float*>(peers.rows(rank));
      std::fill_n(rows, input.size(), value(rank, how.world, call));
      const int status = how.combine ? kernels::launch_combine(launch, 1, nullptr)
                                     : kernels::launch_pull_reduce(launch.pull, 1, nullptr);
      if (status != 0) return status;
      for (const float sum : output) wrong += sum == wanted(how.world, call) ? 0 : 1;
    }
    return 0;
  });
  std::printf("%d wrong sums\n", wrong.load());
  return wrong.load() == 0 ? 0 : 1;
}

}  // namespace pulling
