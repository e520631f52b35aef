#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/engine.h"
#include "windows/control.h"
#include "windows/listener.h"
#include "windows/memfd_source.h"
#include "windows/mesh.h"

namespace symmoe {

// One rank of a group of processes on one host, with all that it owns: connections, flags, windows
// and the engine on top. Members are destroyed in the opposite order.
class SharedGroup {
 public:
  // Collective: returns when every rank is connected and has mapped everybody's flags.
  // `addresses[r]` is the address of rank r's listener, `token` a secret of the group.
  SharedGroup(int rank, int world, const std::vector<std::string>& addresses,
              std::string_view token, Listener&& listener, const EngineConfig& config);
  ~SharedGroup() { mesh_.close(); }

  Engine& engine() { return engine_; }
  size_t peer_bytes() const { return source_.mapped_bytes(); }

 private:
  std::vector<ControlBlock*> blocks() const;

  Mesh mesh_;
  Control control_;
  MemfdSource source_;
  Engine engine_;
};

}  // namespace symmoe
