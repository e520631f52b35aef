#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "collectives/combine.h"
#include "collectives/control_block.h"
#include "collectives/exchange.h"
#include "collectives/peer_watch.h"
#include "collectives/plan.h"
#include "collectives/routing.h"
#include "kernels/cpu/epilogue.h"
#include "pool/pool.h"
#include "sync/adaptive_wait.h"
#include "windows/window.h"

namespace symmoe {

// Bounds per-call tables; one host has no more ranks than this.
constexpr int kMaxRanks = 64;

struct EngineConfig {
  WaitPolicy wait;
  PoolConfig pool;
  bool check = false;  // compare calls across roles before each one
  // Check mode, see PeerWatch: must be longer than any lane computes between two calls; 0: never.
  int64_t stall_ns = 30'000'000'000;
  std::function<void()> interrupt;  // called while waiting; may throw Interrupted
};

// Calls served, by path.
struct CallCounts {
  std::atomic<uint64_t> pull = 0;
  std::atomic<uint64_t> staged = 0;
  std::atomic<uint64_t> routed = 0;
  std::atomic<uint64_t> routed_staged = 0;
  std::atomic<uint64_t> gather = 0;
  std::atomic<uint64_t> gather_staged = 0;
};

struct Call;

// One rank's part in a group whose ranks share windows. Methods may be called from several threads,
// one thread per lane: a second one on a lane gets InvalidArgument. Whatever throws anything but
// InvalidArgument, Mismatch or Closed has poisoned the group: the ranks no longer agree about the
// state of their flags. (CrossedCalls, a Mismatch, poisons as well.)
class Engine {
 public:
  // `blocks[r]` is rank r's control block, mapped here and zeroed before any rank started; `source`
  // and `liveness` outlive the engine.
  Engine(int rank, std::vector<ControlBlock*> blocks, WindowSource* source, Liveness* liveness,
         const EngineConfig& config);

  int rank() const { return rank_; }
  int world() const { return static_cast<int>(blocks_.size()); }

  // The current buffer of (role, lane), at least `bytes` large, which no peer reads any more; null
  // if there can be none, with the reason in refusal(). Idempotent until the buffer is reduced.
  std::shared_ptr<Buffer> acquire(Role role, int lane, size_t bytes);
  // The same for a buffer that acquire gave before; false if it was outgrown since.
  bool rearm(Buffer& buffer);
  std::string refusal() const;

  // Each: collective. `output` takes plan.output_bytes(), where why_no_output allows it. False:
  // some rank had no window for the call, so that all ranks must take their fallback now; nothing
  // was written.
  // From a pool buffer, at `offset`: zero staging.
  // With a routing (and a plan that is routed), of a row only ranks in its mask must have written
  // anything; the others' is not read.
  // With an epilogue, which ranks need not have in common, `output` is what that makes.
  bool reduce_scatter(const Plan& plan, Buffer& buffer, size_t offset, void* output, int threads,
                      const Routing* routing = nullptr,
                      const kernels::Epilogue* epilogue = nullptr);
  bool all_gather(const Plan& plan, Buffer& buffer, size_t offset, void* output, int threads);
  // From any other memory of plan.input_bytes(). `output` may be the own rows of `input`.
  bool reduce_scatter_staged(const Plan& plan, const void* input, void* output, int threads,
                             const Routing* routing = nullptr,
                             const kernels::Epilogue* epilogue = nullptr);
  bool all_gather_staged(const Plan& plan, const void* input, void* output, int threads);
  // acquire, top-k sum into the window, reduce_scatter. `plan` is the reduce_scatter's; `sum` needs
  // no output. As `inputs` stands all memory that the sum reads. With a routing, only rows whose
  // mask has this rank are written.
  Combined combine(const Plan& plan, kernels::TopkReduceArgs sum, const CombineInputs& inputs,
                   void* output, int threads, const Routing* routing = nullptr,
                   const kernels::Epilogue* epilogue = nullptr);

  // Barrier in front of a fallback; Mismatch on all ranks if `text` differs.
  void agree(Role role, int lane, const std::string& text);
  // What check mode does before each call.
  void check_call(int lane, const std::string& text);

  // Collective. Makes buffers for lanes 0..lanes-1 of each role, in one agreement; empty if every
  // rank has all of them, else the reason: then no rank keeps any, and from now on acquire refuses
  // such sizes on all ranks. The order of the roles does not matter. InvalidArgument also if one of
  // the lanes is in a call.
  std::string reserve(const std::vector<Role>& roles, int lanes, size_t bytes, bool pin);
  // Collective. Gives back outgrown buffers; the memory is free on return.
  void trim();
  // Collective. No graph uses any buffer any more: once all ranks have said so, unpins and trims.
  void release_graphs();
  void retain(Buffer& buffer);

  std::shared_ptr<Buffer> find(const void* address, size_t* offset) const;
  bool overlaps(const void* address, size_t bytes) const;
  // What is wrong with memory as the output of a call of a lane; empty: nothing (pool/outputs.h).
  std::string why_no_output(const void* memory, size_t bytes, int lane) const;

  // Throws Closed, Poisoned, or PeerLost if the group cannot do another call.
  void check();
  void poison(PoisonNote::Kind kind, const std::string& reason);
  void close();
  PoolStats pool_stats() const;
  const CallCounts& counts() const { return counts_; }

 private:
  std::string at(const char* operation) const;  // "acquire, rank 1"
  Endpoint& endpoint(Role role, int lane, const char* operation);
  void require_own_process(const char* operation) const;
  void require_usable(const char* operation) const;
  void refuse(const std::string& reason);
  std::shared_ptr<Buffer> buffer_for(const Slot& slot, size_t bytes, const char* operation);
  void arm(Buffer& buffer, Endpoint& here);

  // Calls that move rows (transfer.cpp).
  void require_fit(const Call& call) const;
  void require_places(const Call& call) const;
  void require_apart(const Call& call, MemoryRange input) const;
  Posting posting_from(const Call& call, const Buffer& buffer, size_t offset) const;
  std::shared_ptr<Buffer> stage_for(const Plan& plan, size_t bytes);
  bool from_pool(const Call& call, Buffer& buffer, size_t offset);
  bool from_taken(const Call& call, Exchange& exchange, Buffer& buffer, size_t offset);
  bool from_memory(const Call& call, const void* input);
  bool collect(const Call& call, Exchange& exchange, const std::byte* own_rows);
  void use_up_output(const Call& call) const;

  // Collective pool calls (administration.cpp).
  std::string administrate(const char* operation, const std::string& request,
                           const std::string& failure);
  std::string make_buffers(const std::vector<Slot>& slots, size_t bytes, const std::string& request,
                           bool pin);
  void give_back(const char* operation, bool unpin);
  bool settled(const Buffer& buffer) const;

  // Runs `body`; whatever escapes it poisons the group, but for the caller's own mistakes.
  template <typename Body>
  auto guarded(Body&& body);

  int rank_;
  std::vector<ControlBlock*> blocks_;
  WindowSource* source_;
  Liveness* liveness_;
  EngineConfig config_;
  uint64_t generation_;  // of forks, at creation
  PeerWatch watch_;
  Pool pool_;
  std::deque<Endpoint> calls_;   // by role and lane (a deque: endpoints never move)
  std::deque<Endpoint> checks_;  // by lane
  Endpoint administration_;
  CallCounts counts_;
  std::mutex close_mutex_;
  std::atomic<bool> closed_ = false;
  std::mutex poison_mutex_;
  std::atomic<bool> poisoned_ = false;  // the own note can be read
  mutable std::mutex refusal_mutex_;
  std::string refusal_;
};

template <typename Body>
auto Engine::guarded(Body&& body) {
  try {
    return body();
  } catch (const InvalidArgument&) {
    throw;
  } catch (const Closed&) {
    throw;  // this rank left on purpose, in another thread
  } catch (const CrossedCalls& error) {
    poison(PoisonNote::Kind::kCrossedCalls, error.what());
    throw;
  } catch (const Mismatch&) {
    throw;  // every rank saw it in the same place
  } catch (const PeerLost& error) {
    poison(PoisonNote::Kind::kPeerLost, error.what());
    throw;
  } catch (const DeadlineExceeded& error) {
    poison(PoisonNote::Kind::kDeadline, error.what());
    throw;
  } catch (const std::exception& error) {
    poison(PoisonNote::Kind::kOther, error.what());
    throw;
  }
}

}  // namespace symmoe
