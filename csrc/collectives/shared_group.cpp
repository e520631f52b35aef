#include "collectives/shared_group.h"

#include <utility>

#include "base/clock.h"

namespace symmoe {

SharedGroup::SharedGroup(int rank, int world, const std::vector<std::string>& addresses,
                         std::string_view token, Listener&& listener, const EngineConfig& config)
    : mesh_(rank, world, addresses, token, std::move(listener), now_ns() + config.wait.deadline_ns),
      control_(mesh_, sizeof(ControlBlock), now_ns() + config.wait.deadline_ns),
      source_(mesh_, config.wait.deadline_ns),
      engine_(rank, blocks(), &source_, &mesh_, config) {}

std::vector<ControlBlock*> SharedGroup::blocks() const {
  std::vector<ControlBlock*> blocks;
  for (int rank = 0; rank < mesh_.world(); ++rank) {
    // The segment is zeroed memory, which is a valid state of every atomic in the block.
    blocks.push_back(reinterpret_cast<ControlBlock*>(control_.base(rank)));
  }
  return blocks;
}

}  // namespace symmoe
