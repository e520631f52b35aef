// Outputs in a "dispatch" window: who comes behind them on the device, and what keeps the window.
// A world of one, whose calls are copies. Bugs planted into output_calls.cpp have to make it fail.

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/device/device_group.h"
#include "host_backend.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

constexpr int64_t kRows = 4;
constexpr int64_t kHidden = 16;
constexpr int64_t kPatienceNs = 50'000'000;
constexpr size_t kBytes = size_t{kRows} * kHidden * sizeof(float);

class Alone : public Agreement {
 public:
  std::vector<std::string> gather(const std::string&, const std::string& text) override {
    if (meanwhile) meanwhile();
    return {text};
  }

  std::function<void()> meanwhile;  // what happens while a collective pool call is under way
};

DevicePlan plan_of(Plan::Kind kind, int lane = 0) {
  Plan plan;
  plan.kind = kind;
  plan.role = kind == Plan::Kind::kReduceScatter ? Role::kCombine : Role::kDispatch;
  plan.lane = lane;
  plan.dtype = DType::kFloat32;
  plan.hidden = kHidden;
  plan.rows = kRows;
  plan.begins = {0};
  plan.counts = {kRows};
  plan.text = std::string(plan.operation()) + " of a test";
  plan.seal();
  return DevicePlan(std::move(plan));
}

// A group, two streams, and rows of ones.
struct Scene {
  Scene() {
    DeviceGroupConfig config;
    config.back_end = SYMMOE_HOST_LIBRARY;
    config.pids = {0};
    config.engine.pool.granularity = 4096;
    auto alone = std::make_unique<Alone>();
    agreement = alone.get();
    group = std::make_unique<DeviceGroup>(0, 1, config, std::move(alone));
  }
  ~Scene() {  // what a planted bug leaves behind ends before the memory goes
    first.synchronize();
    second.synchronize();
  }
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;

  DeviceEngine& engine() const { return group->engine(); }
  std::shared_ptr<Buffer> acquire(const Stream& stream, size_t bytes = kBytes) const {
    return engine().acquire(Role::kDispatch, 0, bytes, stream.handle());
  }
  bool reduce_into(const Buffer& window, const Stream& stream) const {
    return engine().run(reduce, ones.data(),
                        {.output = window.window.base, .stream = stream.handle()});
  }
  bool gather_into(const Buffer& window, const Stream& stream) const {
    return engine().run(gather, ones.data(),
                        {.output = window.window.base, .stream = stream.handle()});
  }
  // A call of either kind that somebody else does, with a copy.
  void outside(Plan::Kind kind, const Buffer& window, const Stream& stream) const {
    const OutsideCall call{.kind = kind,
                           .input = ones.data(),
                           .output = window.window.base,
                           .output_bytes = kBytes,
                           .stream = stream.handle()};
    engine().begin_outside(call);
    group->device().copy(window.window.base, ones.data(), kBytes, stream.handle());
    engine().end_outside(call);
  }
  bool is_idle(const Stream& stream) const {
    return host_table().stream_query(stream.handle()) == kDeviceOk;
  }
  // With time enough for what does not have to wait.
  bool stays_busy(const Stream& stream) const {
    const int64_t end = now_ns() + kPatienceNs;
    while (now_ns() < end) {
      if (is_idle(stream)) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  bool has_ones(const Buffer& window) const {
    return std::memcmp(window.window.base, ones.data(), kBytes) == 0;
  }

  std::vector<float> ones = std::vector<float>(size_t{kRows} * kHidden, 1.0f);
  DevicePlan reduce = plan_of(Plan::Kind::kReduceScatter);
  DevicePlan gather = plan_of(Plan::Kind::kAllGather);
  Alone* agreement = nullptr;
  std::unique_ptr<DeviceGroup> group;
  std::shared_ptr<Device> device = open_host();
  Stream first{device};
  Stream second{device};
};

// One way to write the window: the call's own lane is another than the window's, or the same.
using Way = void (*)(const Scene&, const Buffer&, const Stream&);
constexpr Way kWays[] = {
    [](const Scene& scene, const Buffer& window, const Stream& stream) {
      CHECK(scene.reduce_into(window, stream));
    },
    [](const Scene& scene, const Buffer& window, const Stream& stream) {
      CHECK(scene.gather_into(window, stream));
    },
    [](const Scene& scene, const Buffer& window, const Stream& stream) {
      scene.outside(Plan::Kind::kReduceScatter, window, stream);
    },
    [](const Scene& scene, const Buffer& window, const Stream& stream) {
      scene.outside(Plan::Kind::kAllGather, window, stream);
    },
};

}  // namespace

TEST(whoever_acquires_the_window_next_comes_behind_the_call) {
  for (const Way write : kWays) {
    const Scene scene;
    const Gate gate;
    const auto window = scene.acquire(scene.first);
    gate.close(scene.first.handle());
    write(scene, *window, scene.first);
    CHECK(scene.is_idle(scene.second));
    CHECK(scene.acquire(scene.second) == window);
    bool found = false;
    enqueue(scene.second.handle(), [&] { found = scene.has_ones(*window); });
    CHECK(scene.stays_busy(scene.second));
    gate.open();
    scene.second.synchronize();
    CHECK(found);
  }
}

TEST(the_call_comes_behind_the_windows_last_use) {
  for (const Way write : kWays) {
    const Scene scene;
    const Gate gate;
    const auto window = scene.acquire(scene.first);
    gate.close(scene.first.handle());
    CHECK(scene.gather_into(*window, scene.first));
    scene.acquire(scene.first);
    CHECK(scene.is_idle(scene.second));
    write(scene, *window, scene.second);
    CHECK(scene.stays_busy(scene.second));
    gate.open();
    scene.second.synchronize();
    CHECK(scene.has_ones(*window));
  }
}

TEST(an_outgrown_window_stays_until_the_call_has_ended) {
  for (const Way write : kWays) {
    const Scene scene;
    {
      const Gate gate;
      auto window = scene.acquire(scene.first);
      gate.close(scene.first.handle());
      write(scene, *window, scene.first);
      window.reset();
      CHECK(scene.acquire(scene.second, 100 * kBytes) != nullptr);
      scene.engine().trim();
      CHECK_EQ(scene.engine().pool_stats().retired_bytes, size_t{4096});
    }
    scene.first.synchronize();
    scene.second.synchronize();
    scene.engine().trim();
    CHECK_EQ(scene.engine().pool_stats().retired_bytes, size_t{0});
  }
}

TEST(a_window_that_a_graph_writes_stays_until_graphs_are_released) {
  for (const Way write : kWays) {
    const Scene scene;
    auto window = scene.acquire(scene.first);
    scene.first.synchronize();
    CHECK_EQ(host().begin_capture(scene.first.handle(), kCaptureGlobal), int{kDeviceOk});
    write(scene, *window, scene.first);
    HostGraph graph = nullptr;
    CHECK_EQ(host().end_capture(scene.first.handle(), &graph), int{kDeviceOk});
    CHECK_EQ(scene.engine().pool_stats().pinned_bytes, size_t{4096});
    const Buffer* const kept = window.get();
    window.reset();
    CHECK(scene.acquire(scene.second, 100 * kBytes) != nullptr);
    scene.engine().trim();
    CHECK_EQ(scene.engine().pool_stats().retired_bytes, size_t{4096});
    CHECK_EQ(host().launch_graph(graph, scene.first.handle()), int{kDeviceOk});
    scene.first.synchronize();
    CHECK(scene.has_ones(*kept));
    CHECK_EQ(host().destroy_graph(graph), int{kDeviceOk});
    scene.engine().release_graphs();
    CHECK_EQ(scene.engine().pool_stats().retired_bytes, size_t{0});
  }
}

TEST(gathered_rows_use_the_window_up) {
  for (size_t way = 0; way < std::size(kWays); ++way) {
    const Scene scene;
    const auto window = scene.acquire(scene.first);
    kWays[way](scene, *window, scene.first);
    const bool gathered = way % 2 == 1;
    for (const Way write : kWays) {
      if (gathered) {
        CHECK_THROWS_WITH(write(scene, *window, scene.first), InvalidArgument,
                          "gathered already: acquire it again");
      } else if (write == kWays[0] || write == kWays[2]) {
        write(scene, *window, scene.first);
      }
    }
    scene.acquire(scene.first);
    CHECK(scene.gather_into(*window, scene.first));
    scene.first.synchronize();
    CHECK(scene.has_ones(*window));
  }
}

// A reserve of another thread, which has the lane, might be about to replace the window.
TEST(a_call_into_the_window_has_its_lane_to_itself) {
  const Scene scene;
  const auto window = scene.acquire(scene.first);
  bool refused = false;
  scene.agreement->meanwhile = [&] {
    if (std::exchange(refused, true)) return;
    for (const Way write : kWays) {
      CHECK_THROWS_WITH(write(scene, *window, scene.first), InvalidArgument,
                        "another thread is in a call of this lane");
    }
  };
  CHECK_EQ(scene.engine().reserve({Role::kDispatch}, 1, kBytes, false), std::string());
  CHECK(refused);
  CHECK(scene.reduce_into(*window, scene.first));
}

TEST(a_window_is_the_outputs_of_its_own_lane_alone) {
  const Scene scene;
  const auto window = scene.acquire(scene.first);
  const auto combine = scene.engine().acquire(Role::kCombine, 0, kBytes, scene.first.handle());
  const auto refused = [&](const DevicePlan& plan, std::byte* output, const std::string& why) {
    const DeviceCall call{.output = output, .stream = scene.first.handle()};
    CHECK_THROWS_WITH(scene.engine().run(plan, scene.ones.data(), call), InvalidArgument, why);
    const OutsideCall outside{.kind = plan.plan.kind,
                              .lane = plan.plan.lane,
                              .output = output,
                              .output_bytes = kBytes,
                              .stream = scene.first.handle()};
    CHECK_THROWS_WITH(scene.engine().begin_outside(outside), InvalidArgument, why);
  };
  std::byte* const base = window->window.base;
  for (const Plan::Kind kind : {Plan::Kind::kReduceScatter, Plan::Kind::kAllGather}) {
    const DevicePlan here = plan_of(kind);
    refused(here, combine->window.base, "out overlaps a window for combine, lane 0");
    refused(plan_of(kind, 1), base, "out overlaps a window for dispatch, lane 0");
    refused(here, base - kHidden, "out overlaps a ");
    refused(here, base + window->window.bytes - kHidden, "does not lie in a window");
  }
  CHECK(scene.acquire(scene.first, 100 * kBytes) != window);
  refused(scene.reduce, base, "was outgrown: acquire it again");
  refused(scene.gather, base, "was outgrown: acquire it again");
}

int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
