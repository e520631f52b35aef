#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "windows/descriptor.h"

// AF_UNIX SOCK_SEQPACKET sockets with abstract names: message boundaries are kept, both ends see
// when the other closes. All sockets are non-blocking and close-on-exec.
namespace symmoe::unix_socket {

Descriptor listen_at(const std::string& name);

enum class Connected { kYes, kQueueFull, kNobodyListens };
Connected connect_to(const std::string& name, Descriptor& socket);

enum class Accepted { kYes, kNothing, kNoResources };  // the last: out of descriptors or memory
Accepted accept_from(int listener, Descriptor& socket);

// Who made the other end, as the kernel knows it. The pid is 0 if it is not visible from here.
struct Credentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
Credentials credentials_of_peer(int socket);

// A descriptor of the process that becomes readable when it ends. Empty if the kernel gives none.
Descriptor open_process(pid_t pid);

enum class Sent { kYes, kQueueFull, kBusy, kHungUp };  // kBusy: too much is on its way, try later
Sent send_packet(int socket, const void* data, size_t bytes, int descriptor = -1);

enum class Received { kYes, kNothing, kHungUp };
// `bytes` becomes the length of the message, also when that is more than `capacity`. Descriptors
// that came along are discarded unless `descriptor` is given.
Received receive_packet(int socket, void* data, size_t capacity, size_t& bytes,
                        Descriptor* descriptor = nullptr);

// poll() that takes nanoseconds, does not return early for a signal, and throws on failure.
void wait_for_events(std::span<pollfd> events, int64_t timeout_ns);

// Whether the other end is closed; messages may still be waiting.
bool hung_up(int socket);

}  // namespace symmoe::unix_socket
