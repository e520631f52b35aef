#pragma once

#include <string>

#include "windows/descriptor.h"

namespace symmoe {

// The socket on which a rank waits for its peers during bootstrap. Abstract: it has no entry in
// the file system and vanishes with the process.
class Listener {
 public:
  // Binds a name made of random digits and listens. Connections that come before the Mesh is built
  // wait in the kernel.
  Listener();

  // The name without the leading NUL byte: plain ASCII, to be given to the peers.
  const std::string& address() const { return address_; }

  int descriptor() const { return socket_.get(); }

 private:
  std::string address_;
  Descriptor socket_;
};

}  // namespace symmoe
