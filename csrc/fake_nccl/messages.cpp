#include "fake_nccl/messages.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "fake_nccl/arithmetic.h"
#include "fake_nccl/names.h"
#include "fake_nccl/pace.h"
#include "fake_nccl/refusal.h"
#include "fake_nccl/settings.h"

namespace symmoe::fake {
namespace {

// One send or receive on its way.
class Transfer {
 public:
  Transfer(Presence& presence, const Operation& operation)
      : operation_(operation),
        mailbox_(mailbox_of(presence, operation)),
        bytes_(operation.count * size_of(operation.type)) {}

  const Mailbox* mailbox() const { return &mailbox_; }
  const Operation& operation() const { return operation_; }
  bool done() const { return done_; }

  // Moves what can be moved now; true if that was anything.
  bool advance() { return operation_.kind == Kind::kSend ? send() : receive(); }

 private:
  static Mailbox& mailbox_of(Presence& presence, const Operation& operation) {
    auto own = static_cast<size_t>(presence.rank());
    auto peer = static_cast<size_t>(operation.root);
    auto& all = presence.control().mailboxes;
    return operation.kind == Kind::kSend ? all[own][peer] : all[peer][own];
  }

  bool send() {
    const uint64_t read = mailbox_.read.load(std::memory_order_acquire);
    uint64_t written = mailbox_.written.load(std::memory_order_relaxed);
    bool moved = false;
    while (at_ < bytes_ && written - read < kSlots) {
      Mailbox::Slot& slot = mailbox_.slots[written % kSlots];
      const size_t piece = std::min(kSlotBytes, bytes_ - at_);
      slot.message_bytes = bytes_;
      slot.type = operation_.type;
      slot.bytes = static_cast<uint32_t>(piece);
      std::memcpy(slot.data.data(), operation_.send + at_, piece);
      at_ += piece;
      mailbox_.written.store(++written, std::memory_order_release);
      moved = true;
    }
    done_ = at_ == bytes_ && read == written;
    return moved || done_;
  }

  bool receive() {
    const uint64_t written = mailbox_.written.load(std::memory_order_acquire);
    uint64_t read = mailbox_.read.load(std::memory_order_relaxed);
    bool moved = false;
    while (at_ < bytes_ && read < written) {
      const Mailbox::Slot& slot = mailbox_.slots[read % kSlots];
      require_expected(slot);
      std::memcpy(operation_.receive + at_, slot.data.data(), slot.bytes);
      at_ += slot.bytes;
      mailbox_.read.store(++read, std::memory_order_release);
      moved = true;
    }
    done_ = at_ == bytes_;
    return moved || done_;
  }

  void require_expected(const Mailbox::Slot& slot) const {
    if (slot.message_bytes == bytes_ && slot.type == operation_.type) return;
    throw Refusal{kNcclInvalidUsage, "rank " + std::to_string(operation_.root) + " sends " +
                                         std::to_string(slot.message_bytes) + " bytes of " +
                                         name_of(static_cast<NcclDataType>(slot.type)) +
                                         " where its peer waits for " + std::to_string(bytes_) +
                                         " bytes of " + name_of(operation_.type)};
  }

  const Operation& operation_;
  Mailbox& mailbox_;
  size_t bytes_;
  size_t at_ = 0;
  bool done_ = false;
};

// One round over all transfers; true if anything moved. Each end of a mailbox serves one transfer
// at a time; a rank that sends to itself has both ends.
bool advance_all(std::vector<Transfer>& transfers) {
  std::set<std::pair<const Mailbox*, Kind>> taken;
  bool moved = false;
  for (Transfer& transfer : transfers) {
    if (transfer.done()) continue;
    const bool first = taken.insert({transfer.mailbox(), transfer.operation().kind}).second;
    if (first) moved |= transfer.advance();
  }
  return moved;
}

// A peer that will not do its part of an unfinished transfer.
std::optional<std::string> lost_peer(const Presence& presence,
                                     const std::vector<Transfer>& transfers) {
  for (const Transfer& transfer : transfers) {
    if (transfer.done()) continue;
    const std::optional<std::string> why = presence.lost(transfer.operation().root);
    if (why) return std::string(transfer.operation().name) + ": " + *why;
  }
  return std::nullopt;
}

std::string unfinished(const std::vector<Transfer>& transfers) {
  for (const Transfer& transfer : transfers) {
    if (transfer.done()) continue;
    return std::string(transfer.operation().name) + " with rank " +
           std::to_string(transfer.operation().root);
  }
  return "nothing";
}

}  // namespace

void exchange_messages(Presence& presence, const std::vector<const Operation*>& operations) {
  std::vector<Transfer> transfers;
  for (const Operation* operation : operations) transfers.emplace_back(presence, *operation);
  const auto all_done = [&] {
    return std::ranges::all_of(transfers, [](const Transfer& transfer) { return transfer.done(); });
  };
  const std::string who = "rank " + std::to_string(presence.rank());
  Pace pace;
  int64_t deadline_ns = now_ns() + timeout_ns();
  while (!all_done()) {
    if (advance_all(transfers)) {
      deadline_ns = now_ns() + timeout_ns();
      pace = Pace();
      continue;
    }
    presence.require_working();
    pace.pause();
    if (!pace.time_to_look()) continue;
    // What a peer did before it went still counts.
    const std::optional<std::string> lost = lost_peer(presence, transfers);
    if (lost && !advance_all(transfers)) throw Refusal{kNcclRemoteError, who + " in " + *lost};
    if (now_ns() > deadline_ns) {
      throw Refusal{kNcclRemoteError, who + " waited " + std::to_string(timeout_ns() / 1'000'000) +
                                          " ms for " + unfinished(transfers)};
    }
  }
}

}  // namespace symmoe::fake
