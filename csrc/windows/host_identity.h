#pragma once

#include <string>

namespace symmoe {

// Equal on two processes that can share windows: same running kernel, same network namespace (that
// is where abstract sockets live), same user namespace and user (that is what makes credentials
// comparable). Readable, for messages. Where a fact cannot be read, the string equals no other.
// Copies of one virtual machine's snapshot may give equal strings on two hosts; there the Mesh
// finds nobody at the address and throws.
std::string host_identity();

}  // namespace symmoe
