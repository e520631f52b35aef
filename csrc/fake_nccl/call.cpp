#include "fake_nccl/call.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "fake_nccl/pace.h"
#include "fake_nccl/settings.h"

namespace symmoe::fake {
namespace {

// An array, so that nothing is left to destroy when a thread ends.
thread_local std::array<char, 2048> message{};

void pause_for(int64_t milliseconds) {
  Pace pace;
  for (const int64_t end = now_ns() + milliseconds * 1'000'000; now_ns() < end;) pace.pause();
}

std::string injected(const char* name) { return std::string("injected failure of ") + name; }

}  // namespace

// Never destroyed, both of them: streams may still run when the process ends.
Handles<Communicator>& communicators() {
  static auto* const all = new Handles<Communicator>("communicator");
  return *all;
}

Handles<Window>& windows() {
  static auto* const all = new Handles<Window>("window");
  return *all;
}

void set_last_message(const std::string& text) {
  const size_t length = std::min(text.size(), message.size() - 1);
  std::memcpy(message.data(), text.data(), length);
  message[length] = '\0';
}

const char* last_message() { return message.data(); }

void carry_out(const Failure& failure, const char* name, Presence* presence) {
  switch (failure.action) {
    case Failure::Action::kError:
      throw Refusal{kNcclSystemError, injected(name)};
    case Failure::Action::kOom:
      throw Refusal{kNcclUnhandledCudaError, injected(name) + ": out of memory"};
    case Failure::Action::kAsync:
      if (presence != nullptr) presence->fail(kNcclSystemError, injected(name));
      return;
    case Failure::Action::kDelay:
      return pause_for(failure.milliseconds);
    case Failure::Action::kHang:
      if (presence != nullptr) presence->hang(name);
      pause_for(2 * timeout_ns() / 1'000'000);
      throw Refusal{kNcclSystemError, "injected hang of " + std::string(name)};
    case Failure::Action::kNone:
    case Failure::Action::kNull:     // the registration's own
    case Failure::Action::kPending:  // the collectives' own
    case Failure::Action::kDie:      // was carried out before
      return;
  }
}

void require_version(int since, const char* name) {
  if (version() < since) {
    throw Refusal{kNcclInvalidUsage, "version " + std::to_string(version()) + " has no " + name};
  }
}

}  // namespace symmoe::fake
