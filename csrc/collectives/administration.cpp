// Collective pool calls: memory changes hands only here and in growth.
#include <algorithm>
#include <string>
#include <vector>

#include "collectives/engine.h"

namespace symmoe {

std::string Engine::reserve(Role role, int lanes, size_t bytes, bool pin) {
  require_usable("reserve");
  if (lanes < 1 || lanes > kMaxLanes) {
    throw InvalidArgument("reserve: lanes=" + std::to_string(lanes) + " is not in 1.." +
                          std::to_string(kMaxLanes));
  }
  if (const auto reason = pool_.refuses(bytes)) return *reason;  // the same on every rank

  struct Reserved {
    std::shared_ptr<Buffer> before;
    std::shared_ptr<Buffer> now;
  };
  return guarded([&] {
    std::vector<Reserved> reserved;
    std::string failure;
    try {
      for (int lane = 0; lane < lanes; ++lane) {
        const Slot slot{role, lane, Use::kAcquired};
        std::shared_ptr<Buffer> before = pool_.current(slot);
        reserved.push_back({before, buffer_for(slot, std::max(bytes, size_t{1}), "reserve")});
      }
    } catch (const OutOfMemory& error) {
      failure = error.what();
    }

    const std::string request = std::string("reserve ") + name_of(role) +
                                " lanes=" + std::to_string(lanes) +
                                " bytes=" + std::to_string(bytes) + (pin ? " graph" : "");
    const auto revert = [&] {
      for (const Reserved& each : reserved) pool_.revert(each.now, each.before);
    };
    std::string failures;
    try {
      failures = administrate("reserve", request, failure);
    } catch (const Mismatch&) {
      revert();
      throw;
    }
    if (failures.empty()) {
      for (const Reserved& each : reserved) {
        if (pin) each.now->pinned = true;
      }
    } else {
      revert();
      pool_.limit(std::max(bytes, size_t{1}) - 1, failures);
    }
    source_->refresh();
    return failures;
  });
}

void Engine::trim() {
  require_usable("trim");
  guarded([&] {
    // Only when all ranks are here have all finished reading what this one is about to give back.
    administrate("trim", "trim", "");
    administration_.channel.naming("trim", [&] { pool_.trim(); });
    administrate("trim", "trim", "");
    source_->refresh();
    // Memory is free once every peer has let go of it as well.
    administrate("trim", "trim", "");
  });
}

void Engine::release_graphs() {
  require_usable("release_graphs");
  pool_.unpin_all();
  trim();
}

void Engine::retain(Buffer& buffer) {
  require_usable("retain");
  buffer.pinned = true;
}

}  // namespace symmoe
