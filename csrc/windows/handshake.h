#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "windows/descriptor.h"
#include "windows/listener.h"

namespace symmoe {

// A connection to a peer that has proved that it belongs to the group.
struct Connection {
  Descriptor socket;
  Descriptor process;  // pidfd; empty where the kernel does not give one
  int64_t pid = 0;     // as this process sees it, or if it cannot, as the peer sees itself
};

// How a Mesh comes about: every rank connects to all lower ranks and accepts all higher ones, each
// side makes sure of the other's user and then of its token. Returns the connections by rank, the
// own entry empty. Arguments and exceptions are those of the Mesh's constructor.
std::vector<Connection> shake_hands(int rank, int world, const std::vector<std::string>& addresses,
                                    std::string_view token, const Listener& listener,
                                    int64_t deadline_ns);

constexpr size_t kGroupTokenBytes = 32;

}  // namespace symmoe
