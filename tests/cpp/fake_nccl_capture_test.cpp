// The fake's work in graphs: captured once, replayed often, and what a graph must not outlive.
// tsan

#include <cstring>
#include <memory>
#include <vector>

#include "nccl_ranks.h"

namespace symmoe {
namespace {

using namespace check;

constexpr size_t kBytes = size_t{1} << 16;

void fill(std::byte* memory, size_t count, float value) {
  for (size_t i = 0; i < count; ++i) std::memcpy(memory + i * 4, &value, 4);
}

TEST(a_graph_is_replayed_a_hundred_times) {
  const FakeSettings settings;
  run_nccl_threads(2, [](NcclRank& self) {
    const TestWindow window(*self.communicator, kBytes);
    std::vector<float> out(16, -1);
    std::vector<float> gathered(32, -1);
    const TestGraph graph(self, [&] {
      self.communicator->reduce_scatter(window.memory(), out.data(), 16, DType::kFloat32,
                                        self.stream.handle());
      self.communicator->all_gather(out.data(), gathered.data(), 16, DType::kFloat32,
                                    self.stream.handle());
    });
    CHECK_EQ(out[0], -1.0f);  // captured, not run
    for (int replay = 0; replay < 100; ++replay) {
      fill(window.memory(), 32, static_cast<float>(replay + self.rank()));
      if (replay % 10 == self.rank()) host().delay(self.stream.handle(), 1000);  // one is slower
      graph.launch(self.stream);
      self.settle();
      CHECK_EQ(out[15], static_cast<float>(2 * replay + 1));
      CHECK_EQ(gathered[31], static_cast<float>(2 * replay + 1));
      // Calls outside of the graph in between are no trouble.
      if (replay % 7 == 0) {
        self.communicator->all_gather(out.data(), gathered.data(), 16, DType::kFloat32,
                                      self.stream.handle());
      }
    }
    const FakeNcclCall call = fake_calls("ncclReduceScatter", self.rank()).back();
    CHECK_EQ(call.captured, 1);
    CHECK_EQ(call.kernel, int32_t{kFakeNcclSymmetricLL});
  });
  CHECK_EQ(fake_misuses(), size_t{0});
}

TEST(a_graph_that_reads_a_deregistered_window_is_found_out) {
  const FakeSettings settings;
  run_nccl_threads(1, [](NcclRank& self) {
    auto window = std::make_unique<TestWindow>(*self.communicator, kBytes);
    float out[4];
    const TestGraph graph(self, [&] {
      self.communicator->reduce_scatter(window->memory(), out, 4, DType::kFloat32,
                                        self.stream.handle());
    });
    window.reset();
    graph.launch(self.stream);
    self.stream.synchronize();
    CHECK_THROWS_WITH(self.communicator->check(), NcclError, "memory that was freed");
  });
  CHECK_EQ(fake_misuses(), size_t{1});
}

TEST(a_window_deregistered_under_a_graph_is_found_out_while_its_memory_stays) {
  const FakeSettings settings;
  run_nccl_threads(1, [](NcclRank& self) {
    void* const memory = self.communicator->allocate(kBytes);
    void* const window = self.communicator->register_window(memory, kBytes);
    float out[4];
    const TestGraph graph(self, [&] {
      self.communicator->reduce_scatter(memory, out, 4, DType::kFloat32, self.stream.handle());
    });
    self.communicator->deregister_window(window);
    graph.launch(self.stream);
    self.stream.synchronize();
    CHECK_THROWS_WITH(self.communicator->check(), NcclError,
                      "uses window 1, which was deregistered");
    self.communicator->free(memory);
  });
  CHECK_EQ(fake_misuses(), size_t{1});
}

TEST(a_graph_that_outlives_its_communicator_is_found_out) {
  const FakeSettings settings;
  run_nccl_threads(1, [](NcclRank& self) {
    float send[4] = {1, 2, 3, 4};
    float out[4] = {0, 0, 0, 0};
    const TestGraph graph(self, [&] {
      self.communicator->reduce_scatter(send, out, 4, DType::kFloat32, self.stream.handle());
    });
    self.communicator.reset();
    graph.launch(self.stream);
    self.stream.synchronize();
    CHECK_EQ(out[3], 0.0f);
  });
  std::string text;
  CHECK_EQ(fake_misuses(&text), size_t{1});
  CHECK_MSG(text.find("after ncclCommDestroy") != std::string::npos, text);
}

TEST(memory_is_not_allocated_during_a_capture) {
  const FakeSettings settings;
  run_nccl_threads(1, [](NcclRank& self) {
    CHECK_EQ(host().begin_capture(self.stream.handle(), kCaptureGlobal), int{kDeviceOk});
    CHECK_THROWS_WITH(self.communicator->allocate(4096), OutOfMemory,
                      "operation not permitted when stream is capturing");
    HostGraph graph = nullptr;
    CHECK(host().end_capture(self.stream.handle(), &graph) != kDeviceOk);  // spoilt, as on a GPU

    CHECK_EQ(host().begin_capture(self.stream.handle(), kCaptureGlobal), int{kDeviceOk});
    void* memory = nullptr;
    {
      const RelaxedCapture relaxed(*self.device);
      memory = self.communicator->allocate(4096);
    }
    CHECK_EQ(host().end_capture(self.stream.handle(), &graph), int{kDeviceOk});
    host().destroy_graph(graph);
    self.communicator->free(memory);
  });
}

TEST(the_devices_memory_is_limited) {
  const FakeSettings settings;
  run_nccl_threads(1, [](NcclRank& self) {
    host().limit_memory(host().live_bytes() + 8192);
    void* const memory = self.communicator->allocate(8192);
    CHECK_THROWS_WITH(self.communicator->allocate(4096), OutOfMemory, "out of memory: 4096 bytes");
    self.communicator->free(memory);
    void* const again = self.communicator->allocate(8192);
    self.communicator->free(again);
    host().limit_memory(0);
  });
}

}  // namespace
}  // namespace symmoe

int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
