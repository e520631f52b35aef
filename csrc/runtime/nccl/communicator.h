#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/dtype.h"
#include "runtime/device.h"
#include "runtime/nccl/library.h"

namespace symmoe {

// One rank's end of an NCCL communicator, its own or a borrowed one.
//
// Not thread-safe but for abort() and check(): callers serialise. Every failure is an NcclError
// that names the operation, the rank, NCCL's code and its last message. The collectives only queue
// work; what goes wrong with it later is found by check().
class Communicator {
 public:
  using Id = std::array<char, 128>;

  // Made by one rank, to be handed to all.
  static Id make_id(const NcclLibrary& library);

  // An own communicator. Collective; waits for all ranks.
  Communicator(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<Device> device,
               const Id& id, int rank, int world);

  // A communicator of somebody else, made with the same library on the same device. It is never
  // destroyed nor aborted here, and has to outlive this object.
  static std::unique_ptr<Communicator> borrow(std::shared_ptr<const NcclLibrary> library,
                                              std::shared_ptr<Device> device, void* comm);

  // Destroys an own communicator, or aborts it if NCCL has seen an error. Windows must be gone.
  // NCCL waits for the graphs that use it: where some are left, that goes on in the background.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int world() const { return world_; }
  void* handle() const { return comm_.load(); }  // null after abort()
  bool borrowed() const { return borrowed_; }
  const NcclLibrary& library() const { return *library_; }

  // As NCCL's functions; all sums. Counts are elements: per rank for reduce_scatter (received) and
  // all_gather (sent).
  void reduce_scatter(const void* send, void* receive, size_t count, DType type,
                      StreamHandle stream);
  void all_gather(const void* send, void* receive, size_t count, DType type, StreamHandle stream);
  void reduce(const void* send, void* receive, size_t count, DType type, int root,
              StreamHandle stream);
  void broadcast(const void* send, void* receive, size_t count, DType type, int root,
                 StreamHandle stream);
  void send(const void* send, size_t count, DType type, int peer, StreamHandle stream);
  void receive(void* receive, size_t count, DType type, int peer, StreamHandle stream);

  class Batch;

  // Memory that can become a window. Throws OutOfMemory where the device has none left. It counts
  // as a device allocation: not while a stream is being captured.
  void* allocate(size_t bytes);
  void free(void* memory);

  // Collective: makes the memory a window of all ranks, each with the same size. A null result is
  // no error: this machine's NCCL has no windows for such memory.
  void* register_window(void* memory, size_t bytes);
  // Local: the caller has seen to it that no rank uses the window any more.
  void deregister_window(void* window);
  // Where `offset` of a peer's window is mapped in this process.
  void* peer_pointer(void* window, size_t offset, int peer);

  // Throws the NcclError of work that failed since, here or at a peer. Does not wait.
  void check();

  // Gives up an own communicator: queued work ends, blocked calls of other threads return with an
  // error, peers notice. All later calls throw. A borrowed one is only let go. `calls` is what the
  // callers serialise by: one that is on its way may end first, but who waits for a peer is
  // not waited for.
  void abort(std::mutex* calls = nullptr) noexcept;
  // Whether NCCL has ended an own one, windows and all. May be false after abort(): graphs.
  bool gone() const { return gone_->load(); }

 private:
  Communicator(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<Device> device);

  const NcclFunctions& functions() const { return library_->functions(); }
  NcclComm usable(const char* operation) const;
  void require(NcclResult result, const char* operation);
  NcclResult async_error(const char* operation);
  using End = void (*)(const NcclFunctions& functions, NcclComm comm);
  void end(NcclComm comm, End how, int64_t patience_ns) noexcept;
  std::string describe(NcclResult result, const char* operation) const;

  std::shared_ptr<const NcclLibrary> library_;
  std::shared_ptr<Device> device_;
  std::atomic<NcclComm> comm_ = nullptr;
  std::mutex asking_;  // abort() does not pull the communicator from under a question
  std::shared_ptr<std::atomic<bool>> gone_ = std::make_shared<std::atomic<bool>>(false);
  bool borrowed_ = false;
  int rank_ = -1;
  int world_ = 0;
  std::atomic<const char*> last_operation_ = "init";
};

// Operations between the construction and end() are one: NCCL starts them together, so that their
// order does not matter and none waits for another.
class Communicator::Batch {
 public:
  explicit Batch(Communicator& communicator);
  // Throws what NCCL made of the whole.
  void end();
  // Ends it quietly if end() was not reached.
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

 private:
  Communicator& communicator_;
  bool open_ = true;
};

}  // namespace symmoe
