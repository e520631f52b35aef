#include "fake_nccl/presence.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fake_nccl/pace.h"
#include "fake_nccl/settings.h"

namespace symmoe::fake {
namespace {

constexpr int64_t kWritingNs = 1'000'000'000;  // far more than it takes to write a message

std::string timeout_text() { return std::to_string(timeout_ns() / 1'000'000) + " ms"; }

}  // namespace

Presence::Presence(std::shared_ptr<ControlBlock> block, int rank, int world)
    : block_(std::move(block)), rank_(rank), world_(world) {}

void Presence::join() {
  int32_t first_world = 0;
  if (!control().world.compare_exchange_strong(first_world, world_) && first_world != world_) {
    fail(kNcclInvalidArgument, "rank " + std::to_string(rank_) + " counts " +
                                   std::to_string(world_) + " ranks, another one " +
                                   std::to_string(first_world));
    require_working();
  }
  MemberState absent = MemberState::kAbsent;
  if (!member(rank_).state.compare_exchange_strong(absent, MemberState::kJoining)) {
    throw Refusal{kNcclInvalidArgument,
                  "rank " + std::to_string(rank_) + " has joined this communicator before"};
  }
  member(rank_).process = this_process();
  member(rank_).state.store(MemberState::kJoined);
}

void Presence::leave() {
  MemberState joined = MemberState::kJoined;
  member(rank_).state.compare_exchange_strong(joined, MemberState::kLeft);
}

void Presence::abort() {
  aborted_.store(true);
  member(rank_).state.store(MemberState::kAborted);
}

void Presence::fail(NcclResult code, const std::string& text) {
  SharedFailure& failure = control().failure;
  FailureState none = FailureState::kNone;
  if (!failure.state.compare_exchange_strong(none, FailureState::kWriting)) {
    // Somebody else was first, and its text is there in a moment; unless it died while writing.
    Pace pace;
    const int64_t end = now_ns() + kWritingNs;
    while (failure.state.load() != FailureState::kWritten && now_ns() < end) pace.pause();
    if (failure.state.load() == FailureState::kWritten) return;
  }
  failure.code = code;
  const size_t length = std::min(text.size(), failure.text.size() - 1);
  std::memcpy(failure.text.data(), text.data(), length);
  failure.text[length] = '\0';
  failure.state.store(FailureState::kWritten);
}

std::optional<Refusal> Presence::failure() const {
  const SharedFailure& failure = control().failure;
  if (failure.state.load() != FailureState::kWritten) return std::nullopt;
  return Refusal{static_cast<NcclResult>(failure.code), failure.text.data()};
}

void Presence::require_working() const {
  if (aborted()) throw Refusal{kNcclInternalError, "the communicator was aborted"};
  if (std::optional<Refusal> failed = failure()) throw *failed;
}

std::optional<std::string> Presence::lost(int rank) const {
  const Member& other = member(rank);
  const std::string name = "rank " + std::to_string(rank);
  switch (other.state.load()) {
    case MemberState::kLeft:
      return name + " has destroyed its communicator";
    case MemberState::kAborted:
      return name + " has aborted its communicator";
    case MemberState::kJoined:
      if (alive(other.process)) return std::nullopt;
      return name + " has ended (process " + std::to_string(other.process.pid) + ")";
    case MemberState::kAbsent:
    case MemberState::kJoining:
      break;
  }
  return std::nullopt;
}

void Presence::meet(Lane lane, const Posting& posting) {
  (member(rank_).*lane).posting = posting;
  meet(lane);
}

void Presence::meet(Lane lane) {
  std::atomic<uint64_t>& own = (member(rank_).*lane).step;
  const uint64_t step = own.load(std::memory_order_relaxed) + 1;
  own.store(step, std::memory_order_release);
  const int64_t deadline_ns = now_ns() + timeout_ns();
  for (int rank = 0; rank < world_; ++rank) await(lane, rank, step, deadline_ns);
}

void Presence::await(Lane lane, int rank, uint64_t step, int64_t deadline_ns) {
  const std::atomic<uint64_t>& other = (member(rank).*lane).step;
  const auto arrived = [&] { return other.load(std::memory_order_acquire) >= step; };
  Pace pace;
  while (!arrived()) {
    require_working();
    pace.pause();
    if (!pace.time_to_look()) continue;
    std::optional<std::string> why = lost(rank);
    if (!why && now_ns() > deadline_ns) {
      why = "rank " + std::to_string(rank) + " did not come within " + timeout_text();
    }
    // It may have arrived before whatever happened to it.
    if (!why || arrived()) continue;
    fail(kNcclRemoteError,
         "rank " + std::to_string(rank_) + " in " + describe(posting(lane, rank_)) + ": " + *why);
    require_working();
  }
}

void Presence::require_agreement(Lane lane) {
  const Posting& own = posting(lane, rank_);
  for (int rank = 0; rank < world_; ++rank) {
    const Posting& other = posting(lane, rank);
    if (agree(own, other)) continue;
    fail(kNcclInvalidUsage, "ranks do not agree: rank " + std::to_string(rank_) + " is in " +
                                describe(own) + "; rank " + std::to_string(rank) + " in " +
                                describe(other));
    require_working();
  }
}

void Presence::sleep(int milliseconds) const {
  Pace pace;
  const int64_t end = now_ns() + int64_t{milliseconds} * 1'000'000;
  while (now_ns() < end && !aborted() && !failure()) pace.pause();
}

void Presence::hang(const char* operation) {
  Pace pace;
  const int64_t end = now_ns() + 2 * timeout_ns();
  while (now_ns() < end) {
    require_working();
    pace.pause();
  }
  const std::string text =
      std::string("injected hang of ") + operation + " on rank " + std::to_string(rank_);
  fail(kNcclRemoteError, text);
  throw Refusal{kNcclRemoteError, text};
}

}  // namespace symmoe::fake
