#include "kernels/device/emulator/launch.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cpu/float_env.h"
#include "kernels/device/emulator/block.h"
#include "kernels/device/emulator/memory.h"
#include "kernels/device/emulator/options.h"
#include "kernels/device/emulator/violation.h"

namespace symmoe::emulator {
namespace {

std::atomic<Enqueue> enqueue_hook{nullptr};

void run_block(const std::function<void()>& kernel, unsigned index, unsigned blocks,
               unsigned threads) {
  thread_local const auto block = std::make_unique<Block>();
  const kernels::FloatEnv env;  // the device's mode, not the caller's
  block->run(kernel, index, blocks, threads);
  add_counters(block->counters());
}

}  // namespace

void set_enqueue(Enqueue enqueue) { enqueue_hook = enqueue; }

int enqueue(void* stream, std::function<void()> work) {
  if (const Enqueue hook = enqueue_hook.load(); hook != nullptr) {
    return hook(stream, std::move(work));
  }
  work();
  return 0;
}

void run_grid(const std::function<void()>& kernel, unsigned blocks, unsigned threads) {
  if (blocks == 0 || threads == 0 || threads > kMaxThreads) {
    violation("a launch of %u blocks of %u threads", blocks, threads);
  }
  if (!options().co_resident) {
    const bool backwards = options().seed % 2 != 0;  // no order of blocks can be relied on
    for (unsigned i = 0; i < blocks; ++i) {
      run_block(kernel, backwards ? blocks - 1 - i : i, blocks, threads);
    }
    return;
  }
  std::vector<std::thread> runners;
  for (unsigned index = 0; index < blocks; ++index) {
    runners.emplace_back([&, index] { run_block(kernel, index, blocks, threads); });
  }
  for (std::thread& runner : runners) runner.join();
}

}  // namespace symmoe::emulator
