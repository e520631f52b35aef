#pragma once

// Ranks of the fake NCCL, as threads or as processes, over the host back end.

#include <dlfcn.h>

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "fake_nccl/fake_api.h"
#include "host_backend.h"
#include "rank_processes.h"
#include "runtime/nccl/communicator.h"
#include "runtime/stream.h"

namespace symmoe::check {

inline std::shared_ptr<const NcclLibrary> fake_library() {
  return NcclLibrary::open({{SYMMOE_FAKE_NCCL_LIBRARY, false, "test"}});
}

// A function that the fake exports beside NCCL's.
template <typename Function>
Function* fake_function(const char* name) {
  void* const library = dlopen(SYMMOE_FAKE_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail(__FILE__, __LINE__, dlerror());
  void* const function = dlsym(library, name);
  if (function == nullptr) fail(__FILE__, __LINE__, std::string("no symbol ") + name);
  return reinterpret_cast<Function*>(function);
}
#define FAKE_FUNCTION(name) symmoe::check::fake_function<decltype(::name)>(#name)

// What the fake has noted of this process.
inline std::vector<FakeNcclCall> fake_calls() {
  auto* const calls = FAKE_FUNCTION(symmoe_fake_nccl_calls);
  std::vector<FakeNcclCall> all(calls(nullptr, 0));
  calls(all.data(), all.size());
  return all;
}

// The calls of one rank with this name.
inline std::vector<FakeNcclCall> fake_calls(const std::string& operation, int rank) {
  std::vector<FakeNcclCall> all = fake_calls();
  std::erase_if(all, [&](const FakeNcclCall& call) {
    return call.rank != rank || operation != call.operation;
  });
  return all;
}

// The kernel (FakeNcclKernel) of the rank's last reduce-scatter.
inline int32_t last_kernel(int rank) { return fake_calls("ncclReduceScatter", rank).back().kernel; }

inline FakeNcclLive fake_live() {
  FakeNcclLive live{};
  FAKE_FUNCTION(symmoe_fake_nccl_live)(&live);
  return live;
}

inline size_t fake_misuses(std::string* text = nullptr) {
  std::array<char, 512> last{};
  const size_t count = FAKE_FUNCTION(symmoe_fake_nccl_misuses)(last.data(), last.size());
  if (text != nullptr) *text = last.data();
  return count;
}

inline void order_failure(const std::string& rules) {
  CHECK_EQ(FAKE_FUNCTION(symmoe_fake_nccl_fail)(rules.c_str()), 0);
}

// A fresh start: nothing noted, no failures ordered, one setting as given.
class FakeSettings {
 public:
  FakeSettings() { FAKE_FUNCTION(symmoe_fake_nccl_reset)(); }
  FakeSettings(const char* name, const char* value) : name_(name) {
    setenv(name, value, 1);
    FAKE_FUNCTION(symmoe_fake_nccl_reset)();
  }
  ~FakeSettings() {
    if (name_ != nullptr) unsetenv(name_);
    FAKE_FUNCTION(symmoe_fake_nccl_reset)();
  }
  FakeSettings(const FakeSettings&) = delete;
  FakeSettings& operator=(const FakeSettings&) = delete;

 private:
  const char* name_ = nullptr;
};

// One rank with a communicator and a stream of its own.
struct NcclRank {
  NcclRank(const Communicator::Id& id, int rank, int world)
      : library(fake_library()),
        device(open_host(rank)),
        communicator(std::make_unique<Communicator>(library, device, id, rank, world)),
        stream(device) {}

  int rank() const { return communicator->rank(); }
  int world() const { return communicator->world(); }
  const NcclFunctions& functions() const { return library->functions(); }

  // Waits for the stream's work, and for its failure.
  void settle() {
    stream.synchronize();
    communicator->check();
  }

  std::shared_ptr<const NcclLibrary> library;
  std::shared_ptr<Device> device;
  std::unique_ptr<Communicator> communicator;
  Stream stream;
};

// Every rank runs `body` on a thread of this process.
inline void run_nccl_threads(int world, const std::function<void(NcclRank&)>& body) {
  const Communicator::Id id = Communicator::make_id(*fake_library());
  std::atomic<bool> ok = true;
  const auto run = [&](int rank) {
    std::unique_ptr<NcclRank> self;
    try {
      self = std::make_unique<NcclRank>(id, rank, world);
      body(*self);
      return;
    } catch (const Failure&) {
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: unexpected exception: %s\n", rank, error.what());
    }
    ok = false;
    if (self != nullptr) self->communicator->abort();  // the others need not wait for it
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  CHECK(ok);
}

// Hands an id round among processes: rank 0 makes it.
class SharedId {
 public:
  SharedId() {
    void* const memory = mmap(nullptr, sizeof(Communicator::Id), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    id_ = static_cast<Communicator::Id*>(memory);
  }
  ~SharedId() { munmap(id_, sizeof(Communicator::Id)); }
  SharedId(const SharedId&) = delete;
  SharedId& operator=(const SharedId&) = delete;

  // Uses the barrier of this number.
  const Communicator::Id& get(const Rank& rank, size_t barrier) const {
    if (rank.rank() == 0) *id_ = Communicator::make_id(*fake_library());
    rank.barrier(barrier);
    return *id_;
  }

 private:
  Communicator::Id* id_;
};

// Every rank runs `body` in a process of its own; the meeting's barrier 62 is taken. This process
// must not have used the host back end, which does not survive a fork.
inline void run_nccl_processes(int world, const std::function<void(NcclRank&, Rank&)>& body) {
  const SharedId id;
  run_ranks(world, [&](Rank& rank) {
    NcclRank self(id.get(rank, 62), rank.rank(), world);
    body(self, rank);
  });
}

// Memory of ncclMemAlloc that is a window of all ranks.
class TestWindow {
 public:
  TestWindow(Communicator& communicator, size_t bytes)
      : communicator_(&communicator),
        memory_(static_cast<std::byte*>(communicator.allocate(bytes))),
        window_(communicator.register_window(memory_, bytes)) {
    CHECK(window_ != nullptr);
  }
  ~TestWindow() {
    try {
      if (communicator_->handle() != nullptr) communicator_->deregister_window(window_);
      communicator_->free(memory_);
    } catch (const Error& error) {
      std::fprintf(stderr, "end of a test's window: %s\n", error.what());
    }
  }
  TestWindow(const TestWindow&) = delete;
  TestWindow& operator=(const TestWindow&) = delete;

  std::byte* memory() const { return memory_; }
  void* window() const { return window_; }

 private:
  Communicator* communicator_;
  std::byte* memory_;
  void* window_;
};

// A graph of what `body` queues on the rank's stream.
class TestGraph {
 public:
  TestGraph(const NcclRank& self, const std::function<void()>& body) {
    CHECK_EQ(host().begin_capture(self.stream.handle(), kCaptureThreadLocal), int{kDeviceOk});
    body();
    CHECK_EQ(host().end_capture(self.stream.handle(), &graph_), int{kDeviceOk});
  }
  ~TestGraph() { host().destroy_graph(graph_); }
  TestGraph(const TestGraph&) = delete;
  TestGraph& operator=(const TestGraph&) = delete;

  void launch(const Stream& stream) const {
    CHECK_EQ(host().launch_graph(graph_, stream.handle()), int{kDeviceOk});
  }

 private:
  HostGraph graph_ = nullptr;
};

}  // namespace symmoe::check
