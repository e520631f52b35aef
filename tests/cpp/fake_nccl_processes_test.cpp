// The fake between processes: what they see of each other, ranks that die in every call, and what
// is left behind. The test's own process has no streams, since it forks the ranks.

#include <sys/wait.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "nccl_ranks.h"
#include "own_process.h"

namespace symmoe {
namespace {

using namespace check;

constexpr size_t kBytes = size_t{1} << 20;

void fill(std::byte* memory, size_t count, float value) {
  for (size_t i = 0; i < count; ++i) std::memcpy(memory + i * 4, &value, 4);
}

TEST(peers_windows_are_mapped) {
  const FakeSettings settings;
  run_nccl_processes(3, [](NcclRank& self, Rank& rank) {
    const TestWindow window(*self.communicator, kBytes);
    CHECK_EQ(static_cast<int>(window.memory()[100]), 0xff);  // fresh memory is NaN
    *reinterpret_cast<int*>(window.memory() + 4096) = 1000 + self.rank();
    rank.barrier(0);
    for (int peer = 0; peer < self.world(); ++peer) {
      CHECK_EQ(*static_cast<int*>(self.communicator->peer_pointer(window.window(), 4096, peer)),
               1000 + peer);
    }
    CHECK_THROWS_WITH(self.communicator->peer_pointer(window.window(), kBytes, 0), NcclError,
                      "offset 1048576 is beyond a window of 1048576 bytes");
    CHECK_THROWS_WITH(self.communicator->peer_pointer(window.window(), 0, 3), NcclError,
                      "there is no rank 3");
    rank.barrier(1);
  });
}

TEST(a_graph_in_processes_survives_growth_beside_it) {
  run_nccl_processes(2, [](NcclRank& self, Rank& rank) {
    const FakeSettings settings;
    const TestWindow captured(*self.communicator, kBytes);
    std::vector<float> out(16);
    const TestGraph graph(self, [&] {
      self.communicator->reduce_scatter(captured.memory(), out.data(), 16, DType::kFloat32,
                                        self.stream.handle());
    });
    for (int round = 0; round < 20; ++round) {
      const TestWindow other(*self.communicator, kBytes * 2);
      fill(other.memory(), 32, 77);
      fill(captured.memory(), 32, static_cast<float>(round));
      graph.launch(self.stream);
      self.settle();
      CHECK_EQ(out[3], static_cast<float>(2 * round));
      self.communicator->reduce_scatter(other.memory(), out.data(), 16, DType::kFloat32,
                                        self.stream.handle());
      self.settle();
      CHECK_EQ(out[3], 154.0f);
    }
    rank.barrier(0);
  });
}

TEST(every_operation_between_processes) {
  run_nccl_processes(3, [](NcclRank& self, Rank& rank) {
    Communicator& comm = *self.communicator;
    void* const stream = self.stream.handle();
    constexpr size_t kCount = 400'000;  // several pieces of scratch
    const auto own = static_cast<size_t>(self.rank());
    std::vector<float> rows(3 * kCount);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 1000 + own);
    std::vector<float> out(kCount);
    comm.reduce_scatter(rows.data(), out.data(), kCount, DType::kFloat32, stream);
    self.settle();
    for (size_t i = 0; i < kCount; i += 999) {
      CHECK_EQ(out[i], static_cast<float>(3 * ((own * kCount + i) % 1000) + 3));
    }

    std::vector<float> gathered(3 * kCount);
    comm.all_gather(out.data(), gathered.data(), kCount, DType::kFloat32, stream);
    self.settle();
    CHECK_EQ(gathered[2 * kCount + 7], static_cast<float>(3 * ((2 * kCount + 7) % 1000) + 3));

    comm.broadcast(rows.data(), out.data(), kCount, DType::kFloat32, 2, stream);
    self.settle();
    CHECK_EQ(out[5], 7.0f);
    comm.reduce(rows.data(), out.data(), kCount, DType::kFloat32, 1, stream);
    self.settle();
    CHECK_EQ(out[5], self.rank() == 1 ? 18.0f : 7.0f);

    // Everybody's rows to everybody, as the deterministic path sends them.
    Communicator::Batch batch(comm);
    for (int peer = 0; peer < 3; ++peer) {
      comm.send(rows.data() + static_cast<size_t>(peer) * kCount, kCount, DType::kFloat32, peer,
                stream);
      comm.receive(gathered.data() + static_cast<size_t>(peer) * kCount, kCount, DType::kFloat32,
                   peer, stream);
    }
    batch.end();
    self.settle();
    for (size_t peer = 0; peer < 3; ++peer) {
      CHECK_EQ(gathered[peer * kCount + 9], static_cast<float>((own * kCount + 9) % 1000 + peer));
    }

    const TestWindow window(comm, 3 * kCount * 4);
    std::memcpy(window.memory(), rows.data(), rows.size() * 4);
    comm.reduce_scatter(window.memory(), out.data(), kCount, DType::kFloat32, stream);
    self.settle();
    CHECK_EQ(out[11], static_cast<float>(3 * ((own * kCount + 11) % 1000) + 3));
    CHECK_EQ(last_kernel(self.rank()), int32_t{kFakeNcclSymmetricLD});
    rank.barrier(0);
  });
}

// One call of each kind.
struct Call {
  const char* name;
  std::function<void(NcclRank&)> make;
};

std::vector<Call> all_calls() {
  static std::vector<float> send(64, 1);
  static std::vector<float> receive(64);
  const DType type = DType::kFloat32;
  return {
      {"ncclReduceScatter",
       [=](NcclRank& self) {
         self.communicator->reduce_scatter(send.data(), receive.data(), 8, type,
                                           self.stream.handle());
       }},
      {"ncclAllGather",
       [=](NcclRank& self) {
         self.communicator->all_gather(send.data(), receive.data(), 8, type, self.stream.handle());
       }},
      {"ncclReduce",
       [=](NcclRank& self) {
         self.communicator->reduce(send.data(), receive.data(), 8, type, 0, self.stream.handle());
       }},
      {"ncclBroadcast",
       [=](NcclRank& self) {
         self.communicator->broadcast(send.data(), receive.data(), 8, type, 1,
                                      self.stream.handle());
       }},
      {"ncclRecv",
       [=](NcclRank& self) {
         Communicator::Batch batch(*self.communicator);
         self.communicator->send(send.data(), 8, type, 1 - self.rank(), self.stream.handle());
         self.communicator->receive(receive.data(), 8, type, 1 - self.rank(), self.stream.handle());
         batch.end();
       }},
      {"ncclCommWindowRegister",
       [](NcclRank& self) {
         self.communicator->register_window(self.communicator->allocate(kBytes), kBytes);
       }},
  };
}

// The error that a rank gets from the call, at once or from its queued work.
std::string error_of(const Call& call, NcclRank& self) {
  try {
    call.make(self);
    self.stream.synchronize();
    self.communicator->check();
  } catch (const NcclError& error) {
    return error.what();
  }
  return "";
}

TEST(a_rank_that_dies_in_a_call_is_named_by_the_others) {
  for (const Call& call : all_calls()) {
    const SharedMeeting meeting;
    const SharedId id;
    const std::vector<pid_t> pids = start_ranks(2, *meeting, [&](Rank& rank) {
      NcclRank self(id.get(rank, 62), rank.rank(), 2);
      if (self.rank() == 1) order_failure(std::string(call.name) + ":2=die");
      CHECK_EQ(error_of(call, self), "");
      const int64_t start = now_ns();
      const std::string error = error_of(call, self);
      CHECK_MSG(error.find("rank 1 has ended (process ") != std::string::npos, error);
      CHECK(now_ns() - start < 5 * kSecond);  // far below the timeout
    });
    CHECK_EQ(WEXITSTATUS(finish_process(pids[1])), 77);
    CHECK_MSG(finish_process(pids[0]) == 0, call.name);
  }
}

TEST(each_call_fails_once_on_one_rank_and_the_other_learns_of_it) {
  for (const Call& call : all_calls()) {
    const SharedId id;
    run_ranks(2, [&](Rank& rank) {
      NcclRank self(id.get(rank, 62), rank.rank(), 2);
      CHECK_EQ(error_of(call, self), "");
      if (self.rank() == 1) {
        order_failure(std::string(call.name) + ":1=error");
        const std::string error = error_of(call, self);
        CHECK_MSG(error.find("injected failure of ") != std::string::npos, error);
        self.communicator->abort();
      } else {
        const std::string error = error_of(call, self);
        CHECK_MSG(error.find("rank 1 has aborted its communicator") != std::string::npos, error);
      }
      rank.barrier(0);
    });
  }
}

TEST(a_killed_rank_is_noticed_while_others_wait) {
  const SharedMeeting meeting;
  const SharedId id;
  const std::vector<pid_t> pids = start_ranks(3, *meeting, [&](Rank& rank) {
    NcclRank self(id.get(rank, 62), rank.rank(), 3);
    if (self.rank() == 2) {
      rank.note(0) = getpid();
      for (;;) pause();
    }
    float send[3] = {1, 2, 3};
    float out = 0;
    self.communicator->reduce_scatter(send, &out, 1, DType::kFloat32, self.stream.handle());
    rank.note(1).fetch_add(1);
    self.stream.synchronize();
    CHECK_THROWS_WITH(self.communicator->check(), NcclError, "rank 2 has ended");
  });
  wait_until([&] { return meeting->notes[1].load() == 2 && meeting->notes[0].load() != 0; });
  kill(pids[2], SIGKILL);
  finish_process(pids[2]);
  CHECK_EQ(finish_process(pids[0]), 0);
  CHECK_EQ(finish_process(pids[1]), 0);
}

TEST(a_rank_that_dies_before_it_joins) {
  const FakeSettings settings("SYMMOE_FAKE_NCCL_TIMEOUT", "1");
  const SharedMeeting meeting;
  const SharedId id;
  const std::vector<pid_t> pids = start_ranks(2, *meeting, [&](Rank& rank) {
    const Communicator::Id& known = id.get(rank, 62);
    if (rank.rank() == 1) order_failure("ncclCommInitRank:1=die");
    CHECK_THROWS_WITH(NcclRank(known, rank.rank(), 2), NcclError,
                      "rank 1 did not come within 1000 ms");
  });
  CHECK_EQ(WEXITSTATUS(finish_process(pids[1])), 77);
  CHECK_EQ(finish_process(pids[0]), 0);
}

TEST(nothing_is_left_of_communicators_and_windows) {
  const SharedId first;
  const SharedId second;
  run_ranks(2, [&](Rank& rank) {
    const auto use = [&](const SharedId& id, size_t barrier) {
      NcclRank self(id.get(rank, barrier), rank.rank(), 2);
      for (int round = 0; round < 5; ++round) {
        const TestWindow window(*self.communicator, kBytes);
        fill(window.memory(), 16, 1);
        float out[8];
        self.communicator->reduce_scatter(window.memory(), out, 8, DType::kFloat32,
                                          self.stream.handle());
        self.settle();
        CHECK_EQ(out[7], 2.0f);
      }
      rank.barrier(barrier + 1);
    };
    use(first, 10);  // what stays for good, such as the libraries, comes with the first use
    const size_t descriptors = open_descriptors();
    CHECK_EQ(own_maps(), size_t{0});
    use(second, 20);
    CHECK_EQ(open_descriptors(), descriptors);
    CHECK_EQ(own_maps(), size_t{0});
    CHECK_EQ(fake_live().allocations, uint64_t{0});
    CHECK_EQ(fake_live().communicators, uint64_t{0});
  });
}

TEST(an_aborted_communicator_leaves_nothing_either) {
  run_nccl_processes(2, [](NcclRank& self, Rank& rank) {
    void* const memory = self.communicator->allocate(kBytes);
    self.communicator->register_window(memory, kBytes);
    rank.barrier(0);
    self.communicator->abort();
    self.communicator->free(memory);
    rank.barrier(1);
    CHECK_EQ(own_maps(), size_t{0});
    CHECK_EQ(fake_live().windows, uint64_t{0});
  });
}

}  // namespace
}  // namespace symmoe

int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
