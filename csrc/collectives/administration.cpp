// Collective pool calls: memory changes hands only here and in growth.
#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/engine.h"

namespace symmoe {

std::string Engine::administrate(const char* operation, const std::string& request,
                                 const std::string& failure) {
  Exchange exchange(administration_, operation);
  exchange.open();
  const std::string text = failure.empty() ? request : request + ": " + failure;
  const uint32_t status = failure.empty() ? Posting::kNothing : Posting::kNoWindow;
  const bool all_succeeded = exchange.meet(Posting{status, 0, signature_of(request), text});
  std::string failures;
  for (int rank = 0; rank < world() && !all_succeeded; ++rank) {
    const FlagLine& line = administration_.channel.line(rank);
    if (line.ordinal != Posting::kNoWindow) continue;
    failures += (failures.empty() ? "rank " : "; rank ") + std::to_string(rank) + ": " + line.text;
  }
  exchange.finish();
  return failures;
}

std::string Engine::reserve(const std::vector<Role>& roles, int lanes, size_t bytes, bool pin) {
  require_usable("reserve");
  if (lanes < 1 || lanes > kMaxLanes) {
    throw InvalidArgument(at("reserve") + ": lanes=" + std::to_string(lanes) + " is not in 1.." +
                          std::to_string(kMaxLanes));
  }
  std::string request = "reserve";
  std::vector<Slot> slots;
  for (int number = 0; number < kRoles; ++number) {  // in this order on all ranks, each role once
    const Role role = static_cast<Role>(number);
    if (std::find(roles.begin(), roles.end(), role) == roles.end()) continue;
    request += std::string(slots.empty() ? " " : ",") + name_of(role);
    for (int lane = 0; lane < lanes; ++lane) slots.push_back({role, lane, Use::kAcquired});
  }
  if (slots.empty()) throw InvalidArgument(at("reserve") + ": no role is given");
  request +=
      " lanes=" + std::to_string(lanes) + " bytes=" + std::to_string(bytes) + (pin ? " graph" : "");
  // A lane that is in a call uses, or is about to replace, what this call replaces.
  std::deque<Exchange> taken;
  for (const Slot& slot : slots) {
    taken.emplace_back(endpoint(slot.role, slot.lane, "reserve"), "reserve");
  }
  return guarded([&] { return make_buffers(slots, std::max(bytes, size_t{1}), request, pin); });
}

// All slots on all ranks, or none on any. The endpoints are taken.
std::string Engine::make_buffers(const std::vector<Slot>& slots, size_t bytes,
                                 const std::string& request, bool pin) {
  struct Made {
    std::shared_ptr<Buffer> before;
    std::shared_ptr<Buffer> now;
  };
  std::vector<Made> made;
  std::string failure;
  try {
    // Asked for together with the others all the same: they may have given other arguments.
    if (const auto reason = pool_.refuses(bytes)) throw OutOfMemory(*reason);
    for (const Slot& slot : slots) {
      std::shared_ptr<Buffer> before = pool_.current(slot);
      made.push_back({std::move(before), buffer_for(slot, bytes, "reserve")});
    }
  } catch (const OutOfMemory& error) {
    failure = error.what();
  }

  const auto revert = [&] {
    for (Made& each : made) pool_.revert(std::move(each.now), each.before);
  };
  std::string failures;
  try {
    failures = administrate("reserve", request, failure);
  } catch (const Mismatch&) {
    revert();
    throw;
  }
  if (failures.empty()) {
    for (const Made& each : made) {
      if (pin) each.now->pinned = true;
    }
  } else {
    revert();
    pool_.limit(bytes - 1, failures);
  }
  source_->refresh();
  return failures;
}

void Engine::trim() { give_back("trim", false); }

void Engine::release_graphs() { give_back("release_graphs", true); }

void Engine::give_back(const char* operation, bool unpin) {
  require_usable(operation);
  guarded([&] {
    // Only when all ranks are here have all finished reading what this one is about to give back,
    // and only then is it certain that all mean the same call.
    administrate(operation, operation, "");
    if (unpin) pool_.unpin_all();
    administration_.channel.naming(operation, [&] { pool_.trim(); });
    administrate(operation, operation, "");
    source_->refresh();
    // Memory is free once every peer has let go of it as well.
    administrate(operation, operation, "");
  });
}

void Engine::retain(Buffer& buffer) {
  require_usable("retain");
  buffer.pinned = true;
}

}  // namespace symmoe
