// Windows of the fake: which kernel NCCL would take, what it adds in which order, and what misuse
// of windows and buffers it notices.
// tsan

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels_reference.h"
#include "nccl_ranks.h"

namespace symmoe {
namespace {

using namespace check;

constexpr int kWorld = 3;
constexpr size_t kBytes = size_t{1} << 20;

// Values whose sum depends on the order in which they are added.
float input(int rank, size_t i) {
  return std::ldexp(static_cast<float>((i * 37 + static_cast<size_t>(rank) * 101) % 255 + 1),
                    static_cast<int>((i * 3 + static_cast<size_t>(rank) * 7) % 11));
}

void fill(DType type, int rank, size_t count, std::byte* to) {
  for (size_t i = 0; i < count; ++i) {
    reference::encode(type, input(rank, i), reinterpret_cast<char*>(to) + i * size_of(type));
  }
}

// Shard `shard` of `count` elements, added in fp32 from rank `first` on and rounded once.
std::vector<char> summed(DType type, int shard, size_t count, int first) {
  std::vector<char> out(count * size_of(type));
  for (size_t i = 0; i < count; ++i) {
    char stored[4];
    float sum = 0;
    for (int step = 0; step < kWorld; ++step) {
      const int rank = (first + step) % kWorld;
      reference::encode(type, input(rank, static_cast<size_t>(shard) * count + i), stored);
      const float term = reference::decode(type, stored);
      sum = step == 0 ? term : reference::add(sum, term);
    }
    reference::encode(type, sum, out.data() + i * size_of(type));
  }
  return out;
}

TEST(small_sums_are_in_rank_order_and_large_ones_start_at_the_own_rank) {
  const FakeSettings settings;
  run_nccl_threads(kWorld, [](NcclRank& self) {
    const TestWindow window(*self.communicator, kBytes);
    for (const DType type : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
      const size_t below = 16384 / size_of(type) - 1;
      for (const size_t count : {size_t{1}, below, below + 1, size_t{20'000}}) {
        for (const size_t offset : {size_t{0}, size_t{4096}}) {
          fill(type, self.rank(), count * kWorld, window.memory() + offset);
          std::vector<char> out(count * size_of(type));
          self.communicator->reduce_scatter(window.memory() + offset, out.data(), count, type,
                                            self.stream.handle());
          self.settle();
          const bool small = count <= below;
          CHECK_EQ(last_kernel(self.rank()),
                   int32_t{small ? kFakeNcclSymmetricLL : kFakeNcclSymmetricLD});
          CHECK(out == summed(type, self.rank(), count, small ? 0 : self.rank()));
        }
      }
    }
  });
  CHECK_EQ(fake_misuses(), size_t{0});
}

TEST(the_send_pointer_and_the_type_choose_the_kernel) {
  const FakeSettings settings;
  run_nccl_threads(2, [](NcclRank& self) {
    const TestWindow window(*self.communicator, kBytes);
    std::memset(window.memory(), 0, kBytes);
    std::vector<std::byte> elsewhere(4096);
    std::vector<std::byte> out(4096);
    const auto kernel = [&](const void* send, void* receive, NcclDataType type, NcclRedOp op) {
      CHECK_EQ(self.functions().reduce_scatter(send, receive, 64, type, op,
                                               self.communicator->handle(), self.stream.handle()),
               kNcclSuccess);
      self.settle();
      return last_kernel(self.rank());
    };
    CHECK_EQ(kernel(window.memory(), out.data(), kNcclFloat32, kNcclSum),
             int32_t{kFakeNcclSymmetricLL});
    CHECK_EQ(kernel(window.memory(), window.memory() + 8192, kNcclFloat32, kNcclSum),
             int32_t{kFakeNcclSymmetricLL});
    CHECK_EQ(kernel(window.memory(), out.data(), kNcclFloat32, kNcclAvg),
             int32_t{kFakeNcclSymmetricLL});
    CHECK_EQ(kernel(elsewhere.data(), out.data(), kNcclFloat32, kNcclSum),
             int32_t{kFakeNcclOrdinary});
    CHECK_EQ(kernel(elsewhere.data(), window.memory(), kNcclFloat32, kNcclSum),
             int32_t{kFakeNcclOrdinary});
    CHECK_EQ(kernel(window.memory(), out.data(), kNcclFloat64, kNcclSum),
             int32_t{kFakeNcclOrdinary});
    CHECK_EQ(kernel(window.memory(), out.data(), kNcclInt32, kNcclSum), int32_t{kFakeNcclOrdinary});
    CHECK_EQ(kernel(window.memory(), out.data(), kNcclFloat32, kNcclMax),
             int32_t{kFakeNcclOrdinary});
    // Two in a group: not the latency kernel any more.
    Communicator::Batch batch(*self.communicator);
    for (int i = 0; i < 2; ++i) {
      self.communicator->reduce_scatter(window.memory(), out.data(), 64, DType::kFloat32,
                                        self.stream.handle());
    }
    batch.end();
    self.settle();
    CHECK_EQ(last_kernel(self.rank()), int32_t{kFakeNcclSymmetricLD});
  });
}

TEST(a_second_communicator_does_not_know_the_window) {
  const FakeSettings settings;
  const Communicator::Id id = Communicator::make_id(*fake_library());
  run_nccl_threads(2, [&](NcclRank& self) {
    Communicator plain(self.library, self.device, id, self.rank(), 2);
    const TestWindow window(*self.communicator, kBytes);
    float out[8];
    fill(DType::kFloat32, self.rank(), 16, window.memory());
    plain.reduce_scatter(window.memory(), out, 8, DType::kFloat32, self.stream.handle());
    self.settle();
    plain.check();
    CHECK_EQ(last_kernel(self.rank()), int32_t{kFakeNcclOrdinary});
  });
}

TEST(the_version_decides_what_there_is) {
  const FakeSettings settings("SYMMOE_FAKE_NCCL_VERSION", "22901");
  run_nccl_threads(2, [](NcclRank& self) {
    CHECK_EQ(self.library->version(), 22901);
    {
      const TestWindow window(*self.communicator, kBytes);
      std::memset(window.memory(), 0, kBytes);
      std::vector<std::byte> out(4096);
      self.communicator->reduce_scatter(window.memory(), out.data(), 8, DType::kFloat32,
                                        self.stream.handle());
      CHECK_EQ(last_kernel(self.rank()), int32_t{kFakeNcclOrdinary});
      self.communicator->reduce_scatter(window.memory(), window.memory() + 4096, 8, DType::kFloat32,
                                        self.stream.handle());
      self.settle();
      CHECK_EQ(last_kernel(self.rank()), int32_t{kFakeNcclSymmetricLL});
      CHECK_THROWS_WITH(self.communicator->peer_pointer(window.window(), 0, 0), NcclError,
                        "22901 has no ncclGetLsaDevicePointer");
    }
  });
  const FakeSettings old("SYMMOE_FAKE_NCCL_VERSION", "21803");
  run_nccl_threads(1, [](NcclRank& self) {
    CHECK_THROWS_WITH(self.communicator->allocate(4096), NcclError, "21803 has no ncclMemAlloc");
    CHECK_THROWS_WITH(self.communicator->register_window(&self, 4096), NcclError,
                      "21803 has no ncclCommWindowRegister");
  });
}

TEST(windows_come_and_go_without_a_trace) {
  const FakeSettings settings;
  run_nccl_threads(2, [](NcclRank& self) {
    std::vector<float> out(64);
    std::unique_ptr<TestWindow> old;
    for (size_t bytes = 4096; bytes <= (size_t{1} << 20); bytes *= 2) {
      auto grown = std::make_unique<TestWindow>(*self.communicator, bytes);
      fill(DType::kFloat32, self.rank(), 128, grown->memory());
      self.communicator->reduce_scatter(grown->memory(), out.data(), 64, DType::kFloat32,
                                        self.stream.handle());
      self.settle();
      CHECK_EQ(last_kernel(self.rank()), int32_t{kFakeNcclSymmetricLL});
      old.reset();
      old = std::make_unique<TestWindow>(*self.communicator, bytes);
    }
  });
  const FakeNcclLive live = fake_live();
  CHECK_EQ(live.communicators, uint64_t{0});
  CHECK_EQ(live.windows, uint64_t{0});
  CHECK_EQ(live.allocations, uint64_t{0});
  CHECK_EQ(live.allocated_bytes, uint64_t{0});
  CHECK_EQ(fake_misuses(), size_t{0});
}

TEST(wrong_registrations_are_refused) {
  const FakeSettings settings;
  run_nccl_threads(1, [](NcclRank& self) {
    Communicator& comm = *self.communicator;
    std::vector<std::byte> strange(8192);
    CHECK_THROWS_WITH(comm.register_window(strange.data(), 4096), NcclError,
                      "not from ncclMemAlloc");
    auto* const memory = static_cast<std::byte*>(comm.allocate(8192));
    CHECK_THROWS_WITH(comm.register_window(memory + 512, 4096), NcclError, "no multiple of 4096");
    CHECK_THROWS_WITH(comm.register_window(memory, 8193), NcclError, "does not fit");
    void* const window = comm.register_window(memory, 8192);
    CHECK_THROWS_WITH(comm.register_window(memory, 8192), NcclError, "registered already");
    CHECK_THROWS_WITH(comm.free(memory), NcclError, "still registered");
    CHECK_EQ(fake_misuses(), size_t{1});
    CHECK_THROWS_WITH(comm.deregister_window(&self), NcclError, "no such window");
    // A reduction that starts in the window and ends beyond it.
    float out[2000];
    CHECK_THROWS_WITH(
        comm.reduce_scatter(memory + 4096, out, 1025, DType::kFloat32, self.stream.handle()),
        NcclError, "beyond");
    comm.deregister_window(window);
    CHECK_THROWS_WITH(comm.deregister_window(window), NcclError, "no such window");
    comm.free(memory);
    CHECK_THROWS_WITH(comm.free(memory), NcclError, "was freed before");
  });
}

TEST(memory_in_use_stays) {
  const FakeSettings settings;
  run_nccl_threads(1, [](NcclRank& self) {
    Communicator& comm = *self.communicator;
    void* const memory = comm.allocate(4096);
    void* const window = comm.register_window(memory, 4096);
    std::memset(memory, 0, 4096);
    float out[8];
    Gate gate;
    gate.close(self.stream.handle());
    comm.reduce_scatter(memory, out, 8, DType::kFloat32, self.stream.handle());
    CHECK_THROWS_WITH(comm.deregister_window(window), NcclError,
                      "to be deregistered while 1 queued operations read it");
    gate.open();
    self.settle();
    comm.deregister_window(window);

    Gate second;
    second.close(self.stream.handle());
    comm.reduce_scatter(memory, out, 8, DType::kFloat32, self.stream.handle());
    CHECK_THROWS_WITH(comm.free(memory), NcclError, "queued work still uses the memory");
    second.open();
    self.settle();
    comm.free(memory);
  });
  CHECK_EQ(fake_misuses(), size_t{1});
}

TEST(a_communicator_with_windows_is_not_destroyed) {
  const FakeSettings settings;
  run_nccl_threads(1, [](NcclRank& self) {
    const TestWindow window(*self.communicator, 4096);
    CHECK_EQ(self.functions().comm_destroy(self.communicator->handle()), kNcclInvalidUsage);
  });
  std::string text;
  CHECK_EQ(fake_misuses(&text), size_t{1});
  CHECK_MSG(text.find("1 windows still registered") != std::string::npos, text);
}

// NCCL does not look, and rows would be written that are still to be sent.
TEST(overlapping_buffers_that_are_not_in_place_are_a_misuse) {
  const FakeSettings settings;
  const auto run = [](const std::vector<size_t>& shifts) {
    run_nccl_threads(2, [&](NcclRank& self) {
      const NcclFunctions& nccl = self.functions();
      const NcclComm comm = self.communicator->handle();
      void* const stream = self.stream.handle();
      constexpr size_t kCount = 8;
      std::vector<float> memory(4 * kCount);
      for (const size_t shift : shifts) {
        float* const base = memory.data() + shift;
        float* const own = base + static_cast<size_t>(self.rank()) * kCount;
        float* const all = memory.data();
        CHECK_EQ(nccl.all_gather(own, all, kCount, kNcclFloat32, comm, stream), kNcclSuccess);
        CHECK_EQ(nccl.reduce_scatter(all, own, kCount, kNcclFloat32, kNcclSum, comm, stream),
                 kNcclSuccess);
        CHECK_EQ(nccl.broadcast(base, all, kCount, kNcclFloat32, 0, comm, stream), kNcclSuccess);
        CHECK_EQ(nccl.reduce(base, all, kCount, kNcclFloat32, kNcclSum, 0, comm, stream),
                 kNcclSuccess);
      }
      self.settle();
    });
  };
  run({0, 16});  // in place; apart
  CHECK_EQ(fake_misuses(), size_t{0});
  run({1});
  std::string text;
  CHECK_EQ(fake_misuses(&text), size_t{6});  // a broadcast and a reduce have both at the root only
  CHECK(text.find("overlaps the send buffer") != std::string::npos);
}

}  // namespace
}  // namespace symmoe

int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
