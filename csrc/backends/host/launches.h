#pragma once

#include "kernels/device/launch.h"
#include "runtime/device_table.h"

namespace symmoe::host {

int multiprocessors();

// The emulated kernels, as work of the stream. Counted, but for empty problems.
void launch_topk_reduce(const kernels::TopkReduceLaunch& launch, StreamHandle stream);
void launch_rank_reduce(const kernels::RankReduceLaunch& launch, StreamHandle stream);
void launch_copy_to_window(const kernels::CopyLaunch& launch, StreamHandle stream);
void launch_route_mask(const kernels::RouteMaskLaunch& launch, StreamHandle stream);
void launch_pull_reduce(const kernels::PullLaunch& launch, StreamHandle stream);
void launch_combine(const kernels::CombineLaunch& launch, StreamHandle stream);
void launch_apply_epilogue(const kernels::EpilogueLaunch& launch, StreamHandle stream);
void launch_pull_epilogue(const kernels::PullEpilogueLaunch& launch, StreamHandle stream);

}  // namespace symmoe::host
