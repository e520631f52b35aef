#include "windows/peer_processes.h"

#include <poll.h>
#include <signal.h>

#include <cerrno>
#include <string>

#include "base/error.h"
#include "windows/unix_socket.h"

namespace symmoe {

PeerProcesses::PeerProcesses(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) {
    peers_.push_back({pid, pid > 0 ? unix_socket::open_process(pid) : Descriptor()});
  }
}

void PeerProcesses::check(int rank) {
  const Peer& peer = peers_.at(static_cast<size_t>(rank));
  if (peer.pid <= 0) return;
  bool ended = false;
  if (peer.process) {
    pollfd look{peer.process.get(), POLLIN, 0};
    ended = poll(&look, 1, 0) > 0 && (look.revents & POLLIN) != 0;
  } else {
    ended = kill(peer.pid, 0) != 0 && errno == ESRCH;
  }
  if (ended) {
    throw PeerLost("rank " + std::to_string(rank) + " (pid " + std::to_string(peer.pid) +
                   ") ended");
  }
}

}  // namespace symmoe
