#include "windows/unix_socket.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace symmoe::unix_socket {
namespace {

constexpr int kBacklog = 512;

Descriptor make_socket() {
  const int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) throw_errno("socket(AF_UNIX, SOCK_SEQPACKET)");
  return Descriptor(made);
}

struct Address {
  sockaddr_un value{};
  socklen_t bytes = 0;
};

// A leading NUL byte makes the name abstract; the length counts, there is no closing NUL.
Address address_of(const std::string& name) {
  Address address;
  if (name.empty() || name.size() >= sizeof(address.value.sun_path)) {
    throw InvalidArgument("the socket name '" + name + "' has " + std::to_string(name.size()) +
                          " characters; 1 to " +
                          std::to_string(sizeof(address.value.sun_path) - 1) + " are possible");
  }
  address.value.sun_family = AF_UNIX;
  std::memcpy(address.value.sun_path + 1, name.data(), name.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

}  // namespace

Descriptor listen_at(const std::string& name) {
  const Address address = address_of(name);
  Descriptor made = make_socket();
  if (bind(made.get(), reinterpret_cast<const sockaddr*>(&address.value), address.bytes) != 0) {
    throw_errno("bind to the abstract socket " + name);
  }
  if (listen(made.get(), kBacklog) != 0) throw_errno("listen on the abstract socket " + name);
  return made;
}

Connected connect_to(const std::string& name, Descriptor& connected) {
  const Address address = address_of(name);
  Descriptor made = make_socket();
  int result = 0;
  do {
    result = connect(made.get(), reinterpret_cast<const sockaddr*>(&address.value), address.bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    if (errno == EAGAIN) return Connected::kQueueFull;
    if (errno == ECONNREFUSED) return Connected::kNobodyListens;
    throw_errno("connect to the abstract socket " + name);
  }
  connected = std::move(made);
  return Connected::kYes;
}

Accepted accept_from(int listener, Descriptor& socket) {
  for (;;) {
    const int accepted = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (accepted >= 0) {
      socket = Descriptor(accepted);
      return Accepted::kYes;
    }
    switch (errno) {
      case EINTR:
      case ECONNABORTED:
        continue;
      case EAGAIN:
        return Accepted::kNothing;
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        return Accepted::kNoResources;
      default:
        throw_errno("accept");
    }
  }
}

Credentials credentials_of_peer(int socket) {
  ucred found{};
  socklen_t bytes = sizeof(found);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &found, &bytes) != 0) {
    throw_errno("getsockopt(SO_PEERCRED)");
  }
  return {found.pid, found.uid};
}

Descriptor open_process(pid_t pid) {
  if (pid <= 0) return {};
  const auto opened = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));  // close-on-exec always
  return opened < 0 ? Descriptor() : Descriptor(opened);
}

Sent send_packet(int socket, const void* data, size_t bytes, int descriptor) {
  iovec part{const_cast<void*>(data), bytes};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* const item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(item), &descriptor, sizeof(int));
  }
  for (;;) {
    if (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return Sent::kYes;
    switch (errno) {
      case EINTR:
        continue;
      case EAGAIN:
        return Sent::kQueueFull;
      case ETOOMANYREFS:  // descriptors in flight count against the user's limit of open files
      case ENOBUFS:
      case ENOMEM:
        return Sent::kBusy;
      case EPIPE:
      case ECONNRESET:
      case ENOTCONN:
        return Sent::kHungUp;
      default:
        throw_errno("sendmsg to a peer");
    }
  }
}

Received receive_packet(int socket, void* data, size_t capacity, size_t& bytes,
                        Descriptor* descriptor) {
  iovec part{data, capacity};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (descriptor != nullptr) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
    // A reset is reported once, before the messages that arrived ahead of it.
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0) {
    if (errno == EAGAIN) return Received::kNothing;
    throw_errno("recvmsg from a peer");
  }
  if (got == 0) return Received::kHungUp;
  bytes = static_cast<size_t>(got);
  if (descriptor == nullptr) return Received::kYes;
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    throw SystemError("a peer's descriptor could not be received: too many open files?");
  }
  const cmsghdr* const item = CMSG_FIRSTHDR(&header);
  if (item != nullptr && item->cmsg_level == SOL_SOCKET && item->cmsg_type == SCM_RIGHTS) {
    int value = -1;
    std::memcpy(&value, CMSG_DATA(item), sizeof(int));
    *descriptor = Descriptor(value);
  }
  return Received::kYes;
}

void wait_for_events(std::span<pollfd> events, int64_t timeout_ns) {
  const int64_t end = now_ns() + std::max<int64_t>(timeout_ns, 0);
  for (;;) {
    const int64_t left = std::max<int64_t>(end - now_ns(), 0);
    const timespec timeout{static_cast<time_t>(left / 1'000'000'000), left % 1'000'000'000};
    if (ppoll(events.data(), events.size(), &timeout, nullptr) >= 0) return;
    if (errno != EINTR) throw_errno("ppoll on " + std::to_string(events.size()) + " sockets");
  }
}

bool hung_up(int socket) {
  pollfd event{socket, POLLRDHUP, 0};
  wait_for_events({&event, 1}, 0);
  return (event.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace symmoe::unix_socket
