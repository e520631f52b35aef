#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "collectives/control_block.h"
#include "sync/adaptive_wait.h"
#include "windows/window.h"

namespace symmoe {

// Ranks wait for each other in different calls: unlike other mismatches, their flags now differ.
struct CrossedCalls : Mismatch {
  using Mismatch::Mismatch;
};

// Tells a waiting rank when there is no point in going on: the peer's process ended, it gave up
// (poisoned), or, in check mode, it waits in another call itself.
class PeerWatch : public Watch {
 public:
  // `stall_ns`: in check mode, how long two ranks may wait for each other in different lanes before
  // that counts as a mismatch; 0: never (check mode is off). A guess: a correct program looks the
  // same while its other threads compute between their lanes' calls, so this must be longer than
  // they ever do.
  // `interrupt`, if any, is called at every look and may throw Interrupted.
  PeerWatch(int rank, std::vector<ControlBlock*> blocks, Liveness* liveness, int64_t stall_ns,
            std::function<void()> interrupt);

  void look(int rank, int64_t waited_ns, const std::string& context) override;

 private:
  void look_for_poison(int rank, const std::string& context) const;
  void look_for_stall(int rank, const std::string& context) const;

  int rank_;
  std::vector<ControlBlock*> blocks_;
  Liveness* liveness_;
  int64_t stall_ns_;
  std::function<void()> interrupt_;
};

}  // namespace symmoe
