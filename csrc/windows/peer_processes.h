#pragma once

#include <sys/types.h>

#include <vector>

#include "windows/descriptor.h"
#include "windows/window.h"

namespace symmoe {

// Liveness of peers by their process numbers. A process that is not seen from here (another host,
// another container) counts as alive: whoever waits for it has a deadline.
class PeerProcesses : public Liveness {
 public:
  // `pids[r]` is rank r's process, as seen from here; 0: not seen.
  explicit PeerProcesses(const std::vector<pid_t>& pids);

  // Throws PeerLost if the process of `rank` has ended.
  void check(int rank) override;

 private:
  struct Peer {
    pid_t pid = 0;
    Descriptor process;
  };
  std::vector<Peer> peers_;
};

}  // namespace symmoe
