#include "runtime/nccl/communicator.h"

#include <chrono>
#include <cstring>
#include <exception>
#include <future>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "runtime/stream.h"

namespace symmoe {
namespace {

// For a borrowed communicator that does not block: its calls return before they are done.
constexpr int64_t kPatienceNs = 300'000'000'000;

// How long the end of a communicator is waited for.
constexpr int64_t kDestroyPatienceNs = 5'000'000'000;
constexpr int64_t kAbortPatienceNs = 3'000'000'000;
// How long an abort lets a call of another thread that is on its way go first.
constexpr int64_t kCourtesyNs = 200'000'000;

void abort_now(const NcclFunctions& functions, NcclComm comm) { functions.comm_abort(comm); }

// After an error the orderly way would wait for peers that do not come.
void destroy_or_abort(const NcclFunctions& functions, NcclComm comm) {
  NcclResult state = kNcclSuccess;
  const NcclResult asked = functions.comm_get_async_error(comm, &state);
  if (asked != kNcclSuccess || state != kNcclSuccess ||
      functions.comm_destroy(comm) != kNcclSuccess) {
    functions.comm_abort(comm);
  }
}

NcclDataType nccl_type(DType type) {
  switch (type) {
    case DType::kBFloat16:
      return kNcclBfloat16;
    case DType::kFloat16:
      return kNcclFloat16;
    case DType::kFloat32:
      return kNcclFloat32;
  }
  throw InvalidArgument("NCCL: unknown element type " + std::to_string(static_cast<int>(type)));
}

// "unhandled cuda error (1): <NCCL's last message>"
std::string text_of(const NcclFunctions& functions, NcclComm comm, NcclResult result) {
  const char* const name = functions.get_error_string(result);
  std::string text =
      std::string(name != nullptr ? name : "unknown error") + " (" + std::to_string(result) + ")";
  if (functions.get_last_error != nullptr) {
    const char* const last = functions.get_last_error(comm);
    if (last != nullptr && *last != '\0') text += std::string(": ") + last;
  }
  return text;
}

void require_feature(bool present, const NcclLibrary& library, const char* symbol) {
  if (!present) {
    throw Unavailable("NCCL " + nccl_version_text(library.version()) + " (" + library.path() +
                      ") has no " + symbol);
  }
}

}  // namespace

Communicator::Id Communicator::make_id(const NcclLibrary& library) {
  NcclUniqueId id{};
  const NcclResult result = library.functions().get_unique_id(&id);
  if (result != kNcclSuccess) {
    throw NcclError("ncclGetUniqueId: " + text_of(library.functions(), nullptr, result));
  }
  Id bytes;
  static_assert(sizeof(bytes) == sizeof(id.internal));
  std::memcpy(bytes.data(), id.internal, sizeof(id.internal));
  return bytes;
}

Communicator::Communicator(std::shared_ptr<const NcclLibrary> library,
                           std::shared_ptr<Device> device)
    : library_(std::move(library)), device_(std::move(device)) {}

Communicator::Communicator(std::shared_ptr<const NcclLibrary> library,
                           std::shared_ptr<Device> device, const Id& id, int rank, int world)
    : Communicator(std::move(library), std::move(device)) {
  if (world < 1 || rank < 0 || rank >= world) {
    throw InvalidArgument("a communicator cannot have rank " + std::to_string(rank) +
                          " in a world of " + std::to_string(world));
  }
  rank_ = rank;
  world_ = world;
  NcclUniqueId unique;
  std::memcpy(unique.internal, id.data(), id.size());
  const CurrentDevice current(*device_);
  NcclComm comm = nullptr;
  const NcclResult result = functions().comm_init_rank(&comm, world, unique, rank);
  if (result != kNcclSuccess) throw NcclError(describe(result, "ncclCommInitRank"));
  comm_ = comm;
}

std::unique_ptr<Communicator> Communicator::borrow(std::shared_ptr<const NcclLibrary> library,
                                                   std::shared_ptr<Device> device, void* comm) {
  if (comm == nullptr) throw InvalidArgument("the communicator to borrow is null");
  std::unique_ptr<Communicator> communicator(
      new Communicator(std::move(library), std::move(device)));
  communicator->comm_ = comm;
  communicator->borrowed_ = true;
  const NcclFunctions& functions = communicator->functions();
  int ordinal = -1;
  communicator->require(functions.comm_user_rank(comm, &communicator->rank_), "ncclCommUserRank");
  communicator->require(functions.comm_count(comm, &communicator->world_), "ncclCommCount");
  communicator->require(functions.comm_cu_device(comm, &ordinal), "ncclCommCuDevice");
  if (ordinal != communicator->device_->ordinal()) {
    throw InvalidArgument("rank " + std::to_string(communicator->rank_) +
                          ": the communicator to borrow is on device " + std::to_string(ordinal) +
                          ", the group on device " +
                          std::to_string(communicator->device_->ordinal()));
  }
  return communicator;
}

Communicator::~Communicator() {
  const NcclComm comm = comm_.load();
  if (borrowed_ || comm == nullptr || !device_->usable()) return;
  end(comm, destroy_or_abort, kDestroyPatienceNs);
}

// In a thread of its own, since NCCL comes back only when the last graph that was captured with the
// communicator has gone, and that may be never.
void Communicator::end(NcclComm comm, End how, int64_t patience_ns) noexcept {
  try {
    std::promise<void> promise;
    const std::future<void> ended = promise.get_future();
    std::thread thread([library = library_, device = device_, gone = gone_, comm, how,
                        promise = std::move(promise)]() mutable {
      try {
        device->adopt_thread();
        const RelaxedCapture relaxed(*device);  // it may be another group's stream
        how(library->functions(), comm);
        gone->store(true);
      } catch (const Error&) {
        // The device refuses to become current: nothing can be given back any more.
      }
      promise.set_value();
    });
    if (ended.wait_for(std::chrono::nanoseconds(patience_ns)) == std::future_status::ready) {
      thread.join();
    } else {
      thread.detach();
    }
  } catch (const std::exception&) {
    // No memory or no thread for it. NCCL keeps the communicator.
  }
}

NcclComm Communicator::usable(const char* operation) const {
  const NcclComm comm = comm_.load();
  if (comm == nullptr) {
    throw NcclError(std::string(operation) + " on rank " + std::to_string(rank_) + " of " +
                    std::to_string(world_) + ": the communicator was aborted");
  }
  return comm;
}

std::string Communicator::describe(NcclResult result, const char* operation) const {
  return std::string(operation) + " on rank " + std::to_string(rank_) + " of " +
         std::to_string(world_) + ": " + text_of(functions(), comm_.load(), result);
}

void Communicator::require(NcclResult result, const char* operation) {
  last_operation_ = operation;
  const int64_t last_ns = now_ns() + (result == kNcclInProgress ? kPatienceNs : 0);
  while (result == kNcclInProgress) {
    std::this_thread::yield();
    result = async_error(operation);
    if (result == kNcclInProgress && now_ns() > last_ns) {
      throw DeadlineExceeded(describe(result, operation) + " after " +
                             std::to_string(kPatienceNs / 1'000'000'000) + " s");
    }
  }
  if (result != kNcclSuccess) throw NcclError(describe(result, operation));
}

NcclResult Communicator::async_error(const char* operation) {
  const std::lock_guard lock(asking_);
  NcclResult state = kNcclSuccess;
  const NcclResult asked = functions().comm_get_async_error(usable(operation), &state);
  if (asked != kNcclSuccess) throw NcclError(describe(asked, "ncclCommGetAsyncError"));
  return state;
}

void Communicator::reduce_scatter(const void* send, void* receive, size_t count, DType type,
                                  StreamHandle stream) {
  const NcclComm comm = usable("ncclReduceScatter");
  const CurrentDevice current(*device_);
  require(functions().reduce_scatter(send, receive, count, nccl_type(type), kNcclSum, comm, stream),
          "ncclReduceScatter");
}

void Communicator::all_gather(const void* send, void* receive, size_t count, DType type,
                              StreamHandle stream) {
  const NcclComm comm = usable("ncclAllGather");
  const CurrentDevice current(*device_);
  require(functions().all_gather(send, receive, count, nccl_type(type), comm, stream),
          "ncclAllGather");
}

void Communicator::reduce(const void* send, void* receive, size_t count, DType type, int root,
                          StreamHandle stream) {
  const NcclComm comm = usable("ncclReduce");
  const CurrentDevice current(*device_);
  require(functions().reduce(send, receive, count, nccl_type(type), kNcclSum, root, comm, stream),
          "ncclReduce");
}

void Communicator::broadcast(const void* send, void* receive, size_t count, DType type, int root,
                             StreamHandle stream) {
  const NcclComm comm = usable("ncclBroadcast");
  const CurrentDevice current(*device_);
  require(functions().broadcast(send, receive, count, nccl_type(type), root, comm, stream),
          "ncclBroadcast");
}

void Communicator::send(const void* send, size_t count, DType type, int peer, StreamHandle stream) {
  const NcclComm comm = usable("ncclSend");
  const CurrentDevice current(*device_);
  require(functions().send(send, count, nccl_type(type), peer, comm, stream), "ncclSend");
}

void Communicator::receive(void* receive, size_t count, DType type, int peer, StreamHandle stream) {
  const NcclComm comm = usable("ncclRecv");
  const CurrentDevice current(*device_);
  require(functions().receive(receive, count, nccl_type(type), peer, comm, stream), "ncclRecv");
}

void* Communicator::allocate(size_t bytes) {
  require_feature(functions().mem_alloc != nullptr, *library_, "ncclMemAlloc");
  usable("ncclMemAlloc");
  const CurrentDevice current(*device_);
  void* memory = nullptr;
  const NcclResult result = functions().mem_alloc(&memory, bytes);
  if (result == kNcclSuccess) return memory;
  const std::string message =
      describe(result, "ncclMemAlloc") + "; " + std::to_string(bytes) + " bytes were asked for";
  // NCCL has no code of its own for a device without memory.
  if (result == kNcclUnhandledCudaError) throw OutOfMemory(message);
  throw NcclError(message);
}

void Communicator::free(void* memory) {
  require_feature(functions().mem_free != nullptr, *library_, "ncclMemFree");
  const CurrentDevice current(*device_);
  const NcclResult result = functions().mem_free(memory);
  if (result != kNcclSuccess) throw NcclError(describe(result, "ncclMemFree"));
}

void* Communicator::register_window(void* memory, size_t bytes) {
  require_feature(functions().window_register != nullptr, *library_, "ncclCommWindowRegister");
  const NcclComm comm = usable("ncclCommWindowRegister");
  const CurrentDevice current(*device_);
  NcclWindow window = nullptr;
  require(functions().window_register(comm, memory, bytes, &window, kNcclWindowSymmetric),
          "ncclCommWindowRegister");
  return window;
}

void Communicator::deregister_window(void* window) {
  require_feature(functions().window_deregister != nullptr, *library_, "ncclCommWindowDeregister");
  const NcclComm comm = usable("ncclCommWindowDeregister");
  const CurrentDevice current(*device_);
  require(functions().window_deregister(comm, window), "ncclCommWindowDeregister");
}

void* Communicator::peer_pointer(void* window, size_t offset, int peer) {
  require_feature(functions().get_lsa_device_pointer != nullptr, *library_,
                  "ncclGetLsaDevicePointer");
  usable("ncclGetLsaDevicePointer");
  void* pointer = nullptr;
  require(functions().get_lsa_device_pointer(window, offset, peer, &pointer),
          "ncclGetLsaDevicePointer");
  return pointer;
}

void Communicator::check() {
  const NcclResult state = async_error("ncclCommGetAsyncError");
  if (state == kNcclSuccess || state == kNcclInProgress) return;
  throw NcclError("after " + describe(state, last_operation_.load()));
}

void Communicator::abort(std::mutex* calls) noexcept {
  NcclComm comm = nullptr;
  {
    std::unique_lock<std::mutex> turn;
    if (calls != nullptr) turn = std::unique_lock(*calls, std::defer_lock);
    const int64_t last_ns = now_ns() + kCourtesyNs;
    while (calls != nullptr && !turn.try_lock() && now_ns() < last_ns) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const std::lock_guard lock(asking_);
    comm = comm_.exchange(nullptr);
  }
  // Not under the locks: it waits for running work to end.
  if (comm == nullptr || borrowed_ || !device_->usable()) return;
  end(comm, abort_now, kAbortPatienceNs);
}

Communicator::Batch::Batch(Communicator& communicator) : communicator_(communicator) {
  communicator_.usable("ncclGroupStart");
  communicator_.require(communicator_.functions().group_start(), "ncclGroupStart");
}

void Communicator::Batch::end() {
  if (!open_) return;
  open_ = false;
  const CurrentDevice current(*communicator_.device_);
  communicator_.require(communicator_.functions().group_end(), "ncclGroupEnd");
}

Communicator::Batch::~Batch() {
  if (open_) communicator_.functions().group_end();
}

}  // namespace symmoe
