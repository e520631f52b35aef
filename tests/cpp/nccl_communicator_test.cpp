// The Communicator over the fake NCCL: own and borrowed, batches, errors and their texts.
// tsan

#include "runtime/nccl/communicator.h"

#include <chrono>
#include <cstring>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "nccl_ranks.h"

namespace symmoe {
namespace {

using namespace check;

TEST(a_rank_knows_itself) {
  const FakeSettings settings;
  run_nccl_threads(3, [](NcclRank& self) {
    CHECK_EQ(self.communicator->world(), 3);
    CHECK(self.communicator->handle() != nullptr);
    CHECK(!self.communicator->borrowed());
    int rank = -1;
    int device = -1;
    CHECK_EQ(self.functions().comm_user_rank(self.communicator->handle(), &rank), kNcclSuccess);
    CHECK_EQ(rank, self.rank());
    // The device is current for the call only.
    CHECK_EQ(self.functions().comm_cu_device(self.communicator->handle(), &device), kNcclSuccess);
    CHECK_EQ(device, self.device->ordinal());
    self.communicator->check();
  });
  CHECK_EQ(fake_live().communicators, uint64_t{0});
}

TEST(wrong_ranks_are_refused_before_anything_happens) {
  const FakeSettings settings;
  const auto library = fake_library();
  const Communicator::Id id = Communicator::make_id(*library);
  for (const auto& [rank, world] : {std::pair{-1, 2}, std::pair{2, 2}, std::pair{0, 0}}) {
    CHECK_THROWS_WITH(Communicator(library, open_host(), id, rank, world), InvalidArgument,
                      "rank " + std::to_string(rank) + " in a world of " + std::to_string(world));
  }
}

TEST(a_borrowed_communicator_is_used_and_left_alone) {
  const FakeSettings settings;
  run_nccl_threads(2, [](NcclRank& self) {
    const auto borrowed =
        Communicator::borrow(self.library, self.device, self.communicator->handle());
    CHECK_EQ(borrowed->rank(), self.rank());
    CHECK_EQ(borrowed->world(), 2);
    CHECK(borrowed->borrowed());
    const float send[2] = {1, 2};
    float out = 0;
    borrowed->reduce_scatter(send, &out, 1, DType::kFloat32, self.stream.handle());
    self.settle();
    CHECK_EQ(out, self.rank() == 0 ? 2.0f : 4.0f);

    borrowed->abort();
    CHECK(borrowed->handle() == nullptr);
    CHECK_THROWS_WITH(borrowed->check(), NcclError, "the communicator was aborted");
    self.communicator->check();  // its owner's still works
    self.communicator->reduce_scatter(send, &out, 1, DType::kFloat32, self.stream.handle());
    self.settle();
  });
}

TEST(what_cannot_be_borrowed) {
  const FakeSettings settings;
  run_nccl_threads(1, [](NcclRank& self) {
    CHECK_THROWS(Communicator::borrow(self.library, self.device, nullptr), InvalidArgument);
    CHECK_THROWS_WITH(Communicator::borrow(self.library, self.device, &self), NcclError,
                      "no such communicator");
    CHECK_THROWS_WITH(Communicator::borrow(self.library, open_host(5), self.communicator->handle()),
                      InvalidArgument, "on device 0, the group on device 5");
  });
}

TEST(errors_name_operation_rank_code_and_reason) {
  const FakeSettings settings;
  run_nccl_threads(2, [](NcclRank& self) {
    const std::string rank = std::to_string(self.rank());
    float value = 0;
    CHECK_THROWS_WITH(
        self.communicator->broadcast(&value, &value, 1, DType::kFloat32, 7, self.stream.handle()),
        NcclError,
        "ncclBroadcast on rank " + rank +
            " of 2: argument is wrong (4): ncclBroadcast: there is no rank 7 in a "
            "world of 2");
    CHECK_THROWS_WITH(self.communicator->reduce_scatter(nullptr, &value, 1, DType::kFloat32,
                                                        self.stream.handle()),
                      NcclError, "the send buffer is null");
    CHECK_THROWS_WITH(
        self.communicator->send(&value, 1, static_cast<DType>(9), 0, self.stream.handle()),
        InvalidArgument, "unknown element type 9");
    CHECK_THROWS_WITH(self.communicator->deregister_window(&value), NcclError,
                      "ncclCommWindowDeregister on rank " + rank + " of 2");
    self.communicator->check();  // none of them harms the communicator
  });
}

TEST(an_asynchronous_error_names_the_last_call) {
  const FakeSettings settings;
  order_failure("ncclAllGather:1:1=async");
  std::latch queued_at_the_other(1);  // else its own call may find the failure
  run_nccl_threads(2, [&](NcclRank& self) {
    float value = 0;
    float all[2];
    if (self.rank() == 1) queued_at_the_other.wait();
    self.communicator->all_gather(&value, all, 1, DType::kFloat32, self.stream.handle());
    if (self.rank() == 0) queued_at_the_other.count_down();
    self.stream.synchronize();
    CHECK_THROWS_WITH(self.communicator->check(), NcclError,
                      "after ncclAllGather on rank " + std::to_string(self.rank()) +
                          " of 2: system call failed (2): injected failure of queued");
    // And so does every later call; the destructor aborts.
    CHECK_THROWS_WITH(
        self.communicator->all_gather(&value, all, 1, DType::kFloat32, self.stream.handle()),
        NcclError, "injected failure");
  });
  CHECK_EQ(fake_live().communicators, uint64_t{0});
  CHECK_EQ(fake_calls("ncclCommAbort", 0).size(), size_t{1});
  CHECK_EQ(fake_calls("ncclCommDestroy", 0).size(), size_t{0});
}

TEST(after_abort_all_calls_say_so) {
  const FakeSettings settings;
  run_nccl_threads(1, [](NcclRank& self) {
    Communicator& comm = *self.communicator;
    comm.abort();
    comm.abort();  // once more does nothing
    float value = 0;
    void* const stream = self.stream.handle();
    const char* const text = " on rank 0 of 1: the communicator was aborted";
    CHECK_THROWS_WITH(comm.reduce_scatter(&value, &value, 1, DType::kFloat32, stream), NcclError,
                      std::string("ncclReduceScatter") + text);
    CHECK_THROWS_WITH(comm.all_gather(&value, &value, 1, DType::kFloat32, stream), NcclError, text);
    CHECK_THROWS_WITH(comm.reduce(&value, &value, 1, DType::kFloat32, 0, stream), NcclError, text);
    CHECK_THROWS_WITH(comm.send(&value, 1, DType::kFloat32, 0, stream), NcclError, text);
    CHECK_THROWS_WITH(comm.receive(&value, 1, DType::kFloat32, 0, stream), NcclError, text);
    CHECK_THROWS_WITH(comm.allocate(4096), NcclError, text);
    CHECK_THROWS_WITH(comm.register_window(&value, 4), NcclError, text);
    CHECK_THROWS_WITH(comm.check(), NcclError, text);
    CHECK_THROWS_WITH(Communicator::Batch(comm), NcclError, text);
  });
}

TEST(an_abort_lets_a_call_that_is_on_its_way_go_first) {
  const FakeSettings settings;
  run_nccl_threads(1, [](NcclRank& self) {
    std::mutex calls;
    std::unique_lock on_its_way(calls);
    std::thread aborting([&] { self.communicator->abort(&calls); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    self.communicator->check();  // still there
    on_its_way.unlock();
    aborting.join();
    CHECK(self.communicator->gone());

    // Who does not come back is not waited for: the abort is what makes it come back.
    const std::lock_guard stuck(calls);
    std::thread([&] { self.communicator->abort(&calls); }).join();
  });
}

TEST(a_batch_fails_as_a_whole) {
  const FakeSettings settings;
  run_nccl_threads(2, [](NcclRank& self) {
    float value = 1;
    float all[2] = {0, 0};
    {
      Communicator::Batch batch(*self.communicator);
      self.communicator->all_gather(&value, all, 1, DType::kFloat32, self.stream.handle());
      CHECK_THROWS(
          self.communicator->broadcast(&value, &value, 1, DType::kFloat32, 9, self.stream.handle()),
          NcclError);
      CHECK_THROWS_WITH(batch.end(), NcclError, "ncclGroupEnd on rank");
      batch.end();  // over already
    }
    self.settle();
    CHECK_EQ(all[0], 0.0f);  // nothing of it ran

    // Left early, by an exception say, the batch ends quietly and the next one works.
    try {
      const Communicator::Batch batch(*self.communicator);
      self.communicator->broadcast(&value, &value, 1, DType::kFloat32, 9, self.stream.handle());
      fail(__FILE__, __LINE__, "a broadcast from rank 9 of 2");
    } catch (const NcclError&) {
    }
    Communicator::Batch batch(*self.communicator);
    self.communicator->all_gather(&value, all, 1, DType::kFloat32, self.stream.handle());
    CHECK_EQ(all[1], 0.0f);  // not before the end of the batch
    batch.end();
    self.settle();
    CHECK_EQ(all[1], 1.0f);
  });
}

TEST(a_communicator_that_does_not_block_is_waited_for) {
  const FakeSettings settings;
  order_failure("ncclAllGather:1=pending");
  run_nccl_threads(2, [](NcclRank& self) {
    const auto borrowed =
        Communicator::borrow(self.library, self.device, self.communicator->handle());
    float value = 5;
    float all[2] = {0, 0};
    borrowed->all_gather(&value, all, 1, DType::kFloat32, self.stream.handle());
    NcclResult state = kNcclInProgress;
    CHECK_EQ(self.functions().comm_get_async_error(borrowed->handle(), &state), kNcclSuccess);
    CHECK_EQ(state, kNcclSuccess);  // it had asked until then
    self.settle();
    CHECK_EQ(all[1], 5.0f);
  });
}

TEST(abort_and_check_meet) {
  const FakeSettings settings;
  run_nccl_threads(1, [](NcclRank& self) {
    std::thread checking([&] {
      try {
        for (;;) self.communicator->check();
      } catch (const NcclError& error) {
        CHECK_MSG(std::string(error.what()).find("was aborted") != std::string::npos, error.what());
      }
    });
    sleep_ms(5);
    self.communicator->abort();
    checking.join();
  });
}

TEST(instant_collectives_do_nothing) {
  const FakeSettings settings("SYMMOE_FAKE_NCCL_INSTANT", "1");
  run_nccl_threads(1, [](NcclRank& self) {
    float send = 3;
    float out = 0;
    self.communicator->reduce_scatter(&send, &out, 1, DType::kFloat32, self.stream.handle());
    self.settle();
    CHECK_EQ(out, 0.0f);
    CHECK(fake_calls("ncclReduceScatter", 0).empty());
  });
}

// The last one, since NCCL goes on in the background.
TEST(an_end_that_waits_for_graphs_is_not_waited_for) {
  const FakeSettings settings;
  order_failure("ncclCommDestroy:1:0=delay:30000,ncclCommAbort:1:0=delay:30000");
  const int64_t begin = now_ns();
  run_nccl_threads(1, [](NcclRank&) {});
  CHECK(now_ns() - begin < 20'000'000'000);
  run_nccl_threads(1, [](NcclRank& self) {
    const int64_t before = now_ns();
    self.communicator->abort();
    CHECK(now_ns() - before < 10'000'000'000);
    CHECK(!self.communicator->gone());
  });
}

}  // namespace
}  // namespace symmoe

int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
