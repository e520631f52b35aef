#include "collectives/device/faults.h"

#include <array>
#include <atomic>
#include <cstring>
#include <string>

#include "base/error.h"

namespace symmoe {
namespace {

using kernels::Fault;

uint32_t kind_of(const Fault& fault) {
  return std::atomic_ref(const_cast<uint32_t&>(fault.kind)).load(std::memory_order_acquire);
}

bool is_of_values(uint32_t kind) { return kind != Fault::kNone && kind < Fault::kFirstFatal; }

std::string hex(int64_t value) {
  constexpr std::array<char, 17> kDigits = {"0123456789abcdef"};
  std::string text;
  for (auto left = static_cast<uint64_t>(value); left != 0; left >>= 4) {
    text.insert(text.begin(), kDigits[left & 15]);
  }
  return "0x" + (text.empty() ? "0" : text);
}

// "rank 2 ... at the entry barrier of call 17".
std::string at_barrier(const Fault& fault) {
  return std::string(" at the ") + (fault.detail == 0 ? "entry" : "exit") +
         " barrier of the lane's call " + std::to_string(fault.value) +
         (fault.detail == 0 ? ", where its rows are written"
                            : ", where it has read its peers' rows");
}

std::string words_of(const Fault& fault, uint32_t kind) {
  const std::string subject = std::to_string(fault.subject);
  const std::string detail = std::to_string(fault.detail);
  const std::string value = std::to_string(fault.value);
  switch (kind) {
    case Fault::kIndexOutOfRange:
      return "an earlier topk_reduce or combine met a row that does not exist: index[" + subject +
             ", " + detail + "] is " + value + "; it was left out of the sum";
    case Fault::kExpertRankWrong:
      return "an earlier call met a rank that does not exist: expert_to_rank[" + subject + "] is " +
             value + ", in a world of " + detail + "; the expert counted as nobody's";
    case Fault::kSizesWrong:
      return fault.subject < 0
                 ? "an earlier call's sizes on the device add up to " + value + ", but there are " +
                       detail + " rows; no row was read or written"
                 : "an earlier call's sizes on the device are wrong: sizes[" + subject + "] is " +
                       value + ", allowed 0.." + detail + "; no row was read or written";
    case Fault::kCallsDiffer:
      return "ranks made different calls: rank " + subject + " one with signature " +
             hex(fault.value) + ", this rank one with " + hex(fault.detail);
    case Fault::kValuesDiffer:
      return "ranks gave different sizes or routings: those of rank " + subject +
             " have the hash " + hex(fault.value) + ", this rank's " + hex(fault.detail);
    case Fault::kNoWindow:
      return "rank " + subject + " reads from window " + detail + "+" + value +
             ", which this rank has not mapped";
    case Fault::kPeerLate:
      return "rank " + subject + " did not come in time" + at_barrier(fault);
    default:
      return "rank " + subject + " gave up" + at_barrier(fault) + "; its own error says why";
  }
}

}  // namespace

Faults::Faults(const std::shared_ptr<Device>& device) : memory_(device, sizeof(Fault)) {
  std::memset(memory_.get(), 0, sizeof(Fault));
}

bool Faults::pending() const { return kind_of(*record()) != Fault::kNone; }

void Faults::raise(const char* operation, int rank, bool but_values) {
  if (!pending()) return;
  const std::lock_guard lock(mutex_);
  Fault& fault = *record();
  const std::string where = rank < 0 ? "" : ", rank " + std::to_string(rank);
  uint32_t kind = kind_of(fault);
  std::string text;
  do {  // again, if a worse fault has come meanwhile
    if (kind == Fault::kNone || (but_values && is_of_values(kind))) return;
    text = operation + where + ": " + words_of(fault, kind);
  } while (!std::atomic_ref(fault.kind)
                .compare_exchange_strong(kind, Fault::kNone, std::memory_order_acq_rel,
                                         std::memory_order_acquire));
  if (is_of_values(kind)) throw InvalidArgument(text);
  if (kind == Fault::kCallsDiffer || kind == Fault::kValuesDiffer) throw Mismatch(text);
  if (kind == Fault::kPeerLate) throw DeadlineExceeded(text);
  throw PeerLost(text);
}

std::string Faults::lost_peer(int rank) const {
  const Fault& fault = *record();
  const uint32_t kind = kind_of(fault);
  if (kind != Fault::kPeerLate && kind != Fault::kPeerGaveUp && kind != Fault::kNoWindow) return "";
  return "rank " + std::to_string(rank) + ": " + words_of(fault, kind);
}

}  // namespace symmoe
