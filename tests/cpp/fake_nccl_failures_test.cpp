// What goes wrong in the fake between threads: ranks that do not agree, that do not come, that give
// up, and failures that were ordered. Nothing hangs, and the message names both sides.
// tsan

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "nccl_ranks.h"

namespace symmoe {
namespace {

using namespace check;

constexpr size_t kBytes = 65536;

// The text with which work failed, this rank's or a peer's.
std::string failure_of(NcclRank& self) {
  self.stream.synchronize();
  const int64_t end = now_ns() + kPatience;
  while (now_ns() < end) {
    try {
      self.communicator->check();
    } catch (const NcclError& error) {
      return error.what();
    }
    sleep_ms(1);
  }
  fail(__FILE__, __LINE__, "rank " + std::to_string(self.rank()) + " noticed nothing");
}

void check_contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) CHECK_MSG(text.find(part) != std::string::npos, text);
}

// Runs `body` on two ranks, which both see their work fail with a text that has these parts.
void check_failure(const std::vector<std::string>& parts,
                   const std::function<void(NcclRank&)>& body) {
  run_nccl_threads(2, [&](NcclRank& self) {
    body(self);
    check_contains(failure_of(self), parts);
  });
}

// Floats enough for whatever these tests call, on the heap: queued work may outlive a test.
struct Buffers {
  std::vector<float> send = std::vector<float>(1024, 1);
  std::vector<float> receive = std::vector<float>(1024);
};

TEST(ranks_that_do_not_agree_are_told_both_sides) {
  const FakeSettings settings;
  Buffers buffers[2];
  const auto scatter = [&](NcclRank& self, size_t count, DType type) {
    Buffers& own = buffers[self.rank()];
    self.communicator->reduce_scatter(own.send.data(), own.receive.data(), count, type,
                                      self.stream.handle());
  };
  const auto gather = [&](NcclRank& self, size_t count) {
    Buffers& own = buffers[self.rank()];
    self.communicator->all_gather(own.send.data(), own.receive.data(), count, DType::kFloat32,
                                  self.stream.handle());
  };
  check_failure({"rank 0", "rank 1", "of 8 float32", "of 9 float32"},
                [&](NcclRank& self) { scatter(self, self.rank() == 0 ? 8 : 9, DType::kFloat32); });
  check_failure({"8 float32", "8 bfloat16"}, [&](NcclRank& self) {
    scatter(self, 8, self.rank() == 0 ? DType::kFloat32 : DType::kBFloat16);
  });
  check_failure({"ncclReduceScatter of 8 float32 (sum)", "ncclAllGather of 8"},
                [&](NcclRank& self) {
                  if (self.rank() == 0) {
                    scatter(self, 8, DType::kFloat32);
                  } else {
                    gather(self, 8);
                  }
                });
  check_failure({"root 0", "root 1"}, [&](NcclRank& self) {
    Buffers& own = buffers[self.rank()];
    self.communicator->broadcast(own.send.data(), own.receive.data(), 8, DType::kFloat32,
                                 self.rank(), self.stream.handle());
  });
  check_failure({"8 float32 (sum)", "8 float32 (max)"}, [&](NcclRank& self) {
    Buffers& own = buffers[self.rank()];
    CHECK_EQ(self.functions().reduce_scatter(own.send.data(), own.receive.data(), 8, kNcclFloat32,
                                             self.rank() == 0 ? kNcclSum : kNcclMax,
                                             self.communicator->handle(), self.stream.handle()),
             kNcclSuccess);
  });
  // The same call, but one of the ranks has made another one before, which failed on its host.
  std::atomic<bool> failed = false;
  check_failure({"call 1", "call 2"}, [&](NcclRank& self) {
    if (self.rank() == 1) {
      host().fail("enqueue", 1, kVendorStatus + 1);
      CHECK_THROWS(gather(self, 8), NcclError);
      failed = true;
    }
    wait_until([&] { return failed.load(); });
    gather(self, 8);
  });
  check_failure({"operation 1 of 2 in a group"}, [&](NcclRank& self) {
    Communicator::Batch batch(*self.communicator);
    gather(self, 8);
    if (self.rank() == 1) gather(self, 8);
    batch.end();
  });
  check_failure(
      {"rank 0 sends 32 bytes of float32 where its peer waits for 36"}, [&](NcclRank& self) {
        Buffers& own = buffers[self.rank()];
        if (self.rank() == 0) {
          self.communicator->send(own.send.data(), 8, DType::kFloat32, 1, self.stream.handle());
        } else {
          self.communicator->receive(own.receive.data(), 9, DType::kFloat32, 0,
                                     self.stream.handle());
        }
      });
}

TEST(uneven_windows_and_offsets_are_reported) {
  const FakeSettings settings;
  const auto check_uneven =
      [](const std::vector<std::string>& parts,
         const std::function<std::byte*(int rank, std::byte* first, std::byte* second)>& choose) {
        run_nccl_threads(2, [&](NcclRank& self) {
          const TestWindow first(*self.communicator, kBytes);
          const TestWindow second(*self.communicator, kBytes);
          std::memset(first.memory(), 0, kBytes);
          std::memset(second.memory(), 0, kBytes);
          float out[8];
          self.communicator->reduce_scatter(choose(self.rank(), first.memory(), second.memory()),
                                            out, 8, DType::kFloat32, self.stream.handle());
          check_contains(failure_of(self), parts);
        });
      };
  check_uneven({"window 1 at 0", "window 1 at 64"},
               [](int rank, std::byte* first, std::byte*) { return first + 64 * rank; });
  check_uneven(
      {"window 1 at 0", "window 2 at 0"},
      [](int rank, std::byte* first, std::byte* second) { return rank == 0 ? first : second; });
  static std::vector<std::byte> elsewhere(kBytes);
  check_uneven(
      {"kernel symmetric LL", "kernel ordinary"},
      [](int rank, std::byte* first, std::byte*) { return rank == 0 ? first : elsewhere.data(); });
}

TEST(unequal_registrations_are_reported) {
  const FakeSettings settings;
  run_nccl_threads(2, [](NcclRank& self) {
    void* const memory = self.communicator->allocate(kBytes);
    const size_t bytes = self.rank() == 0 ? kBytes : kBytes / 2;
    try {
      self.communicator->register_window(memory, bytes);
      fail(__FILE__, __LINE__, "a window of two sizes was registered");
    } catch (const NcclError& error) {
      check_contains(error.what(),
                     {"ncclCommWindowRegister of 65536", "ncclCommWindowRegister of 32768"});
    }
    self.communicator->free(memory);
  });
  CHECK_EQ(fake_live().windows, uint64_t{0});
  CHECK_EQ(fake_live().allocations, uint64_t{0});
}

TEST(windows_that_go_in_different_orders_are_reported) {
  const FakeSettings settings;
  run_nccl_threads(2, [](NcclRank& self) {
    void* memory[3];
    void* window[2];
    for (void*& one : memory) one = self.communicator->allocate(kBytes);
    for (int i = 0; i < 2; ++i) window[i] = self.communicator->register_window(memory[i], kBytes);
    self.communicator->deregister_window(window[self.rank()]);
    self.communicator->deregister_window(window[1 - self.rank()]);
    CHECK_THROWS_WITH(self.communicator->register_window(memory[2], kBytes), NcclError,
                      "after deregistrations");
    for (void* one : memory) self.communicator->free(one);
  });
}

TEST(a_rank_that_does_not_come_is_named) {
  const FakeSettings settings("SYMMOE_FAKE_NCCL_TIMEOUT", "1");
  Buffers buffers;
  run_nccl_threads(2, [&](NcclRank& self) {
    if (self.rank() == 0) {
      self.communicator->all_gather(buffers.send.data(), buffers.receive.data(), 8, DType::kFloat32,
                                    self.stream.handle());
    }
    check_contains(failure_of(self), {"rank 0 in ncclAllGather of 8", "rank 1 did not come"});
  });
  run_nccl_threads(2, [&](NcclRank& self) {
    if (self.rank() == 0) {
      self.communicator->receive(buffers.receive.data(), 8, DType::kFloat32, 1,
                                 self.stream.handle());
    }
    check_contains(failure_of(self), {"rank 0 waited 1000 ms for ncclRecv with rank 1"});
  });
  // A rank that never joins.
  const Communicator::Id id = Communicator::make_id(*fake_library());
  CHECK_THROWS_WITH(Communicator(fake_library(), open_host(), id, 0, 2), NcclError,
                    "rank 1 did not come within 1000 ms");
}

TEST(a_group_of_unlike_worlds_does_not_form) {
  const FakeSettings settings;
  const Communicator::Id id = Communicator::make_id(*fake_library());
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const Communicator made(fake_library(), open_host(), id, rank, 2 + rank);
      } catch (const NcclError&) {
        ++refused;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(refused.load(), 2);
  Communicator::Id wrong{};
  CHECK_THROWS_WITH(Communicator(fake_library(), open_host(), wrong, 0, 1), NcclError,
                    "not made by this library");
}

TEST(abort_ends_what_waits) {
  const FakeSettings settings;
  Buffers buffers[2];
  std::atomic<bool> aborted = false;
  run_nccl_threads(2, [&](NcclRank& self) {
    Buffers& own = buffers[self.rank()];
    if (self.rank() == 0) {
      self.communicator->reduce_scatter(own.send.data(), own.receive.data(), 8, DType::kFloat32,
                                        self.stream.handle());
      std::thread aborting([&] {
        sleep_ms(30);
        self.communicator->abort();
        aborted = true;
      });
      const int64_t start = now_ns();
      self.stream.synchronize();
      CHECK(now_ns() - start < 5 * kSecond);  // far below the timeout
      aborting.join();
      CHECK_THROWS_WITH(self.communicator->check(), NcclError, "was aborted");
      CHECK_EQ(own.receive[0], 0.0f);
      return;
    }
    // The peer finds out when it needs the rank that is gone.
    wait_until([&] { return aborted.load(); });
    self.communicator->reduce_scatter(own.send.data(), own.receive.data(), 8, DType::kFloat32,
                                      self.stream.handle());
    check_contains(failure_of(self), {"rank 0 has aborted its communicator"});
  });
}

TEST(abort_ends_a_call_of_another_thread) {
  const FakeSettings settings;
  std::atomic<bool> over = false;
  run_nccl_threads(2, [&](NcclRank& self) {
    if (self.rank() == 1) return wait_until([&] { return over.load(); });
    void* const memory = self.communicator->allocate(kBytes);
    std::thread aborting([&] {
      sleep_ms(30);
      self.communicator->abort();
    });
    CHECK_THROWS_WITH(self.communicator->register_window(memory, kBytes), NcclError, "aborted");
    aborting.join();
    over = true;
    self.communicator->free(memory);
  });
}

TEST(a_rank_that_left_is_named) {
  const FakeSettings settings;
  Buffers buffers;
  run_nccl_threads(2, [&](NcclRank& self) {
    if (self.rank() == 1) return self.communicator.reset();
    self.communicator->reduce_scatter(buffers.send.data(), buffers.receive.data(), 8,
                                      DType::kFloat32, self.stream.handle());
    check_contains(failure_of(self), {"rank 1 has destroyed its communicator"});
  });
}

TEST(the_host_learns_of_ordered_failures) {
  const FakeSettings settings;
  for (const std::string call :
       {"ncclReduceScatter", "ncclAllGather", "ncclReduce", "ncclBroadcast", "ncclSend", "ncclRecv",
        "ncclMemAlloc", "ncclCommWindowRegister", "ncclCommWindowDeregister", "ncclMemFree",
        "ncclGetLsaDevicePointer"}) {
    const FakeSettings fresh;
    Buffers buffers;
    run_nccl_threads(1, [&](NcclRank& self) {
      Communicator& comm = *self.communicator;
      float* const send = buffers.send.data();
      float* const receive = buffers.receive.data();
      void* const stream = self.stream.handle();
      order_failure(call + ":2:0=error");
      int failed = 0;
      for (int round = 0; round < 3; ++round) {
        const auto attempt = [&](const std::function<void()>& body) {
          try {
            body();
          } catch (const NcclError& error) {
            ++failed;
            CHECK_EQ(round, 1);
            check_contains(error.what(), {call + " on rank 0 of 1", "system call failed (2)",
                                          "injected failure of " + call});
          }
        };
        void* memory = nullptr;
        void* window = nullptr;
        attempt([&] { comm.reduce_scatter(send, receive, 4, DType::kFloat32, stream); });
        attempt([&] { comm.all_gather(send, receive, 4, DType::kFloat32, stream); });
        attempt([&] { comm.reduce(send, receive, 4, DType::kFloat32, 0, stream); });
        attempt([&] { comm.broadcast(send, receive, 4, DType::kFloat32, 0, stream); });
        attempt([&] { comm.send(send, 0, DType::kFloat32, 0, stream); });
        attempt([&] { comm.receive(receive, 0, DType::kFloat32, 0, stream); });
        attempt([&] { memory = comm.allocate(kBytes); });
        if (memory == nullptr) continue;
        attempt([&] { window = comm.register_window(memory, kBytes); });
        if (window != nullptr) {
          attempt([&] { comm.peer_pointer(window, 0, 0); });
          attempt([&] { comm.deregister_window(window); });
          if (call == "ncclCommWindowDeregister" && round == 1) comm.deregister_window(window);
        }
        attempt([&] { comm.free(memory); });
        if (call == "ncclMemFree" && round == 1) comm.free(memory);
      }
      CHECK_EQ(failed, 1);
      self.settle();
    });
    CHECK_EQ(fake_live().allocations, uint64_t{0});
  }
}

TEST(ordered_failures_of_other_kinds) {
  const FakeSettings settings;
  Buffers buffers[2];
  const auto scatter = [&](NcclRank& self) {
    Buffers& own = buffers[self.rank()];
    self.communicator->reduce_scatter(own.send.data(), own.receive.data(), 4, DType::kFloat32,
                                      self.stream.handle());
  };
  order_failure("ncclMemAlloc:1=oom");
  run_nccl_threads(1, [](NcclRank& self) {
    CHECK_THROWS_WITH(self.communicator->allocate(kBytes), OutOfMemory, "out of memory");
  });
  order_failure("ncclCommWindowRegister:1:1=null");
  run_nccl_threads(2, [](NcclRank& self) {
    void* const memory = self.communicator->allocate(kBytes);
    void* const window = self.communicator->register_window(memory, kBytes);
    CHECK_EQ(window == nullptr, self.rank() == 1);
    if (window != nullptr) self.communicator->deregister_window(window);
    self.communicator->register_window(memory, kBytes);
    self.communicator->abort();
    self.communicator->free(memory);
  });
  order_failure("ncclReduceScatter:2:1=async");
  run_nccl_threads(2, [&](NcclRank& self) {
    scatter(self);
    scatter(self);
    check_contains(failure_of(self), {"injected failure of queued ncclReduceScatter on rank 1"});
  });
  order_failure("ncclReduceScatter:1:0=delay:50");
  run_nccl_threads(2, [&](NcclRank& self) {
    const int64_t start = now_ns();
    scatter(self);
    self.settle();
    CHECK(now_ns() - start >= 50'000'000);
  });
  const FakeSettings impatient("SYMMOE_FAKE_NCCL_TIMEOUT", "1");
  order_failure("ncclReduceScatter:1:0=hang,ncclAllGather:7=error");
  run_nccl_threads(2, [&](NcclRank& self) {
    scatter(self);
    check_contains(failure_of(self), {"rank 0 did not come"});
  });
}

TEST(orders_that_make_no_sense_are_refused) {
  const FakeSettings settings;
  auto* const order = FAKE_FUNCTION(symmoe_fake_nccl_fail);
  for (const char* wrong :
       {"ncclSend", "ncclSend:1", "ncclSend:0=error", "ncclSend:x=error", "ncclSend:1=explode",
        "ncclSend:1=delay", ":1=error", "ncclSend:1:y=error", "ncclSend:1=error,nonsense"}) {
    CHECK_MSG(order(wrong) == 1, wrong);
  }
  CHECK_EQ(order(""), 0);
}

}  // namespace
}  // namespace symmoe

int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
