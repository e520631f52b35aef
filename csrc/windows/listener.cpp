#include "windows/listener.h"

#include "windows/random_hex.h"
#include "windows/unix_socket.h"

namespace symmoe {

Listener::Listener()
    : address_("symmoe-" + random_hex(16)), socket_(unix_socket::listen_at(address_)) {}

}  // namespace symmoe
