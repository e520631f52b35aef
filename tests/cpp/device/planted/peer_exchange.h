#pragma once

// Ranks that read each other's rows within a kernel, between two barriers of flags in memory that
// all of them see: the kind of kernel in which a forgotten order shows only under load. A rank is a
// thread that launches kernels whose blocks run at the same time.

#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "one_kernel.h"

namespace peers {

constexpr int kRanks = 2;
constexpr unsigned kBlocks = 2;
constexpr unsigned kThreads = 32;
constexpr unsigned kRows = kBlocks * kThreads;

struct Window {
  int32_t row[kRows];
  uint32_t flag[2][kBlocks][kRanks];  // [before or after][block][of whom]
};

struct Ranks {
  Window* window[kRanks];
};

#if defined(SYMMOE_PLANT_RELAXED)
constexpr int kSet = __ATOMIC_RELAXED;
constexpr int kSee = __ATOMIC_RELAXED;
#else
constexpr int kSet = __ATOMIC_RELEASE;
constexpr int kSee = __ATOMIC_ACQUIRE;
#endif

// Each block meets the block of the same number of every rank.
inline void meet(const Ranks& ranks, int phase, unsigned rank, uint32_t epoch) {
  dev::sync_block();
  if (dev::thread() < kRanks) {
    const unsigned peer = dev::thread();
    __atomic_store_n(&ranks.window[peer]->flag[phase][dev::block()][rank], epoch, kSet);
    const uint32_t* const mine = &ranks.window[rank]->flag[phase][dev::block()][peer];
    while (static_cast<int32_t>(__atomic_load_n(mine, kSee) - epoch) < 0) symmoe::emulator::spin();
  }
  dev::sync_block();
}

// Everybody's rows, summed; then the own row of the next epoch is written.
__global__ void exchange(Ranks ranks, int32_t* output, unsigned rank, uint32_t epoch) {
  const unsigned place = dev::block() * kThreads + dev::thread();
  dev::store(&ranks.window[rank]->row[place], static_cast<int32_t>(epoch * (rank + 1)));
  meet(ranks, 0, rank, epoch);
  int32_t sum = 0;
  for (const Window* window : ranks.window) sum += dev::load<int32_t>(&window->row[place]);
  dev::store(output + place, sum);
#if !defined(SYMMOE_PLANT_NO_EXIT)
  meet(ranks, 1, rank, epoch);
#endif
}

// The exit status: a race is the sanitizer's to report, but wrong sums count as well.
inline int run(uint32_t epochs) {
  symmoe::emulator::options().co_resident = true;
  symmoe::emulator::options().seed = 1;
  std::vector<std::unique_ptr<Window>> windows;
  Ranks ranks{};
  for (Window*& window : ranks.window) {
    windows.push_back(std::make_unique<Window>());
    window = windows.back().get();
  }
  int wrong[kRanks] = {};
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<int32_t> output(kRows);
      for (uint32_t epoch = 1; epoch <= epochs; ++epoch) {
        dev::launch(exchange, kBlocks, kThreads, nullptr, ranks, output.data(), rank, epoch);
        for (const int32_t sum : output)
          wrong[rank] += sum == static_cast<int32_t>(3 * epoch) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%d wrong sums\n", wrong[0] + wrong[1]);
  return wrong[0] + wrong[1] == 0 ? 0 : 1;
}

}  // namespace peers
