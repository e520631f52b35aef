#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "fake_nccl/posting.h"
#include "fake_nccl/process.h"
#include "fake_nccl/shared_memory.h"
#include "runtime/nccl/abi.h"

// The memory that the ranks of one communicator share, and how they find it: the unique id names
// the process that made it and its descriptor there.
namespace symmoe::fake {

constexpr int kMaxRanks = 16;
constexpr size_t kScratchBytes = size_t{1} << 20;  // per rank, for ordinary collectives
constexpr size_t kSlotBytes = size_t{64} << 10;    // of a message between two ranks
constexpr size_t kSlots = 4;

// One rank's progress in one sequence of meetings.
struct alignas(64) Line {
  std::atomic<uint64_t> step;  // meetings reached so far
  Posting posting;
};

enum class MemberState : uint32_t { kAbsent, kJoining, kJoined, kLeft, kAborted };

struct alignas(64) Member {
  std::atomic<MemberState> state;
  ProcessIdentity process;
  Line host;    // calls that block the host
  Line device;  // queued work
};

enum class FailureState : uint32_t { kNone, kWriting, kWritten };

// The first failure of the communicator, for all ranks.
struct SharedFailure {
  std::atomic<FailureState> state;
  int32_t code;
  std::array<char, 1024> text;
};

// Messages from one rank to another, in order.
struct Mailbox {
  struct Slot {
    uint64_t message_bytes;  // of the whole message
    int32_t type;
    uint32_t bytes;  // in this slot
    std::array<std::byte, kSlotBytes> data;
  };
  alignas(64) std::atomic<uint64_t> written;  // slots so far
  alignas(64) std::atomic<uint64_t> read;
  std::array<Slot, kSlots> slots;
};

struct Control {
  uint64_t cookie;             // the same as in the unique id
  std::atomic<int32_t> world;  // 0 until the first rank has joined
  SharedFailure failure;
  std::array<Member, kMaxRanks> members;
  std::array<std::array<Mailbox, kMaxRanks>, kMaxRanks> mailboxes;  // [from][to]
  std::array<std::array<std::byte, kScratchBytes>, kMaxRanks> scratch;
};

// A process's mapping of it. Ranks that are threads of one process have one between them.
class ControlBlock {
 public:
  explicit ControlBlock(SharedMemory memory) : memory_(std::move(memory)) {}
  Control* operator->() const { return reinterpret_cast<Control*>(memory_.data()); }
  Control& operator*() const { return *reinterpret_cast<Control*>(memory_.data()); }
  void close_descriptor() { memory_.close_descriptor(); }
  int number() const { return number_; }  // of the group in this process, from 1
  void set_number(int number) { number_ = number; }
  int descriptor() const { return memory_.descriptor(); }

 private:
  SharedMemory memory_;
  int number_ = 0;
};

NcclUniqueId make_unique_id();
// Throws Refusal if the id is none, or its process has ended.
std::shared_ptr<ControlBlock> attach(const NcclUniqueId& id);
// All ranks have attached: the id is used up.
void retire(const NcclUniqueId& id);

}  // namespace symmoe::fake
