// tsan
// Kernels through the host back end's table: they run in stream order, later, and in graphs. What
// they compute is tested in tests/cpp/device.

#include <array>
#include <cstring>

#include "base/error.h"
#include "host_backend.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

constexpr int64_t kHidden = 40;

float* floats(const DeviceMemory& memory) { return static_cast<float*>(memory.get()); }

// Two slots of each of three tokens, and their sum.
struct Scene {
  std::shared_ptr<Device> device = open_host();
  Stream stream{device};
  DeviceMemory input{device, 3 * 2 * kHidden * sizeof(float)};
  DeviceMemory output{device, 3 * kHidden * sizeof(float)};
  kernels::TopkReduceLaunch launch{.input = input.get(),
                                   .output = output.get(),
                                   .tokens = 3,
                                   .slots = 2,
                                   .hidden = kHidden,
                                   .input_type = DType::kFloat32,
                                   .output_type = DType::kFloat32};

  void set_input(float value) const {
    for (int64_t i = 0; i < 3 * 2 * kHidden; ++i) floats(input)[i] = value;
  }
  bool output_is(float value) const {
    for (int64_t i = 0; i < 3 * kHidden; ++i) {
      if (floats(output)[i] != value) return false;
    }
    return true;
  }
};

}  // namespace

TEST(a_kernel_runs_in_stream_order) {
  const Scene scene;
  const Gate gate;
  const uint64_t before = host().count("topk_reduce");
  gate.close(scene.stream.handle());
  enqueue(scene.stream.handle(), [&] { scene.set_input(1.5f); });
  scene.device->topk_reduce(scene.launch, scene.stream.handle());
  enqueue(scene.stream.handle(), [&] { scene.set_input(7.0f); });
  CHECK_EQ(host().count("topk_reduce"), before + 1);
  gate.open();
  scene.stream.synchronize();
  CHECK(scene.output_is(3.0f));
}

TEST(a_kernel_runs_in_every_replay) {
  const Scene scene;
  CHECK_EQ(host().begin_capture(scene.stream.handle(), kCaptureGlobal), int{kDeviceOk});
  scene.device->topk_reduce(scene.launch, scene.stream.handle());
  HostGraph graph = nullptr;
  CHECK_EQ(host().end_capture(scene.stream.handle(), &graph), int{kDeviceOk});
  for (int round = 0; round < 10; ++round) {
    scene.set_input(static_cast<float>(round));
    CHECK_EQ(host().launch_graph(graph, scene.stream.handle()), int{kDeviceOk});
    scene.stream.synchronize();
    CHECK(scene.output_is(2.0f * static_cast<float>(round)));
  }
  CHECK_EQ(host().destroy_graph(graph), int{kDeviceOk});
}

TEST(ranks_are_summed_and_rows_copied) {
  const Scene scene;
  scene.set_input(2.0f);
  const kernels::RankReduceLaunch sum{.own = scene.input.get(),
                                      .gathered = scene.input.get(),
                                      .output = scene.output.get(),
                                      .count = kHidden,
                                      .stride = kHidden,
                                      .ranks = 6,
                                      .own_rank = 4,
                                      .type = DType::kFloat32};
  const uint64_t sums = host().count("rank_reduce");
  const uint64_t copies = host().count("copy_to_window");
  scene.device->rank_reduce(sum, scene.stream.handle());
  const kernels::CopyLaunch copy{.source = scene.output.get(),
                                 .destination = floats(scene.output) + kHidden,
                                 .bytes = kHidden * sizeof(float)};
  scene.device->copy_to_window(copy, scene.stream.handle());
  scene.stream.synchronize();
  for (int64_t i = 0; i < 2 * kHidden; ++i) CHECK_EQ(floats(scene.output)[i], 12.0f);
  CHECK(floats(scene.output)[2 * kHidden] != floats(scene.output)[2 * kHidden]);  // not written
  CHECK_EQ(host().count("rank_reduce"), sums + 1);
  CHECK_EQ(host().count("copy_to_window"), copies + 1);
}

TEST(rows_are_finished) {
  const Scene scene;
  scene.set_input(2.0f);
  const uint64_t before = host().count("apply_epilogue");
  kernels::EpilogueLaunch launch{.input = scene.input.get(),
                                 .output = scene.output.get(),
                                 .rows = 2,
                                 .hidden = kHidden,
                                 .type = DType::kFloat32};
  launch.steps.scale = 1.5f;
  launch.steps.has_scale = true;
  scene.device->apply_epilogue(launch, scene.stream.handle());
  scene.stream.synchronize();
  for (int64_t i = 0; i < 2 * kHidden; ++i) CHECK_EQ(floats(scene.output)[i], 3.0f);
  launch.rows = 0;
  scene.device->apply_epilogue(launch, scene.stream.handle());
  CHECK_EQ(host().count("apply_epilogue"), before + 1);
}

TEST(empty_problems_launch_nothing) {
  Scene scene;
  scene.launch.tokens = 0;
  const uint64_t before = host().count("topk_reduce");
  scene.device->topk_reduce(scene.launch, scene.stream.handle());
  CHECK_EQ(host().count("topk_reduce"), before);
}

TEST(a_launch_into_nowhere_fails) {
  const Scene scene;
  const uint64_t before = host().count("topk_reduce");
  CHECK_THROWS_WITH(scene.device->topk_reduce(scene.launch, reinterpret_cast<StreamHandle>(5)),
                    DeviceError, "topk_reduce kernel: no such stream");
  host().fail("topk_reduce", 1, kVendorStatus + 719);
  CHECK_THROWS_WITH(scene.device->topk_reduce(scene.launch, scene.stream.handle()), DeviceError,
                    "topk_reduce kernel: topk_reduce: failure by order");
  CHECK_EQ(host().count("topk_reduce"), before);
}

TEST(kernels_of_several_streams_run_side_by_side) {
  const std::array<Scene, 4> scenes;
  for (int round = 0; round < 5; ++round) {
    for (const Scene& scene : scenes) {
      scene.set_input(static_cast<float>(round));
      scene.device->topk_reduce(scene.launch, scene.stream.handle());
    }
    for (const Scene& scene : scenes) {
      scene.stream.synchronize();
      CHECK(scene.output_is(2.0f * static_cast<float>(round)));
    }
  }
}

int main(int argc, char** argv) { return run_all(argc, argv); }
