#include "backends/host/launches.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include "backends/host/instruments.h"
#include "backends/host/refusal.h"
#include "backends/host/runtime.h"
#include "kernels/device/emulator/launch.h"

namespace symmoe::host {
namespace {

// The table function that is launching in this thread: what its kernels are counted as.
thread_local const char* launching = nullptr;

// How the emulator gives us what a launcher launches: none, or one kernel.
int take_launch(void* stream, std::function<void()> kernel) {
  Runtime::instance().enqueue(stream, make_work(std::move(kernel)));
  count_work(launching);
  return kDeviceOk;
}

template <typename Launch>
void launch_as(const char* function, int (*launcher)(const Launch&, int, void*),
               const Launch& launch, StreamHandle stream) {
  static const bool hooked = (emulator::set_enqueue(take_launch), true);
  static_cast<void>(hooked);
  launching = function;
  const int status = launcher(launch, multiprocessors(), stream);
  if (status != kDeviceOk) {
    throw Refusal{kInvalidArgument,
                  std::string(function) + ": the launch gave " + std::to_string(status)};
  }
}

}  // namespace

int multiprocessors() {
  static const int count = [] {
    constexpr int kDefault = 4;
    const char* given = std::getenv("SYMMOE_HOST_MULTIPROCESSORS");
    return given == nullptr ? kDefault : std::max(1, std::atoi(given));
  }();
  return count;
}

void launch_topk_reduce(const kernels::TopkReduceLaunch& launch, StreamHandle stream) {
  launch_as("topk_reduce", kernels::launch_topk_reduce, launch, stream);
}

void launch_rank_reduce(const kernels::RankReduceLaunch& launch, StreamHandle stream) {
  launch_as("rank_reduce", kernels::launch_rank_reduce, launch, stream);
}

void launch_copy_to_window(const kernels::CopyLaunch& launch, StreamHandle stream) {
  launch_as("copy_to_window", kernels::launch_copy_to_window, launch, stream);
}

void launch_route_mask(const kernels::RouteMaskLaunch& launch, StreamHandle stream) {
  launch_as("route_mask", kernels::launch_route_mask, launch, stream);
}

// The blocks of a kernel that waits for peers run one after the other, as all do here. That is
// enough: a block waits for the same block of its peers, and all of them take their blocks in the
// same order.
void launch_pull_reduce(const kernels::PullLaunch& launch, StreamHandle stream) {
  launch_as("pull_reduce", kernels::launch_pull_reduce, launch, stream);
}

void launch_combine(const kernels::CombineLaunch& launch, StreamHandle stream) {
  launch_as("combine", kernels::launch_combine, launch, stream);
}

void launch_apply_epilogue(const kernels::EpilogueLaunch& launch, StreamHandle stream) {
  launch_as("apply_epilogue", kernels::launch_apply_epilogue, launch, stream);
}

void launch_pull_epilogue(const kernels::PullEpilogueLaunch& launch, StreamHandle stream) {
  launch_as("pull_epilogue", kernels::launch_pull_epilogue, launch, stream);
}

}  // namespace symmoe::host
