#pragma once

#include <cstddef>
#include <string>

#include "collectives/device/problem.h"
#include "collectives/plan.h"
#include "runtime/device.h"
#include "runtime/nccl/communicator.h"

namespace symmoe {

// The ways to move rows between devices. The numbers are part of the Python bindings.
enum class PathKind : int { kLocal = 0, kDirect = 1, kPlain = 2, kGrouped = 3, kOrdered = 4 };
constexpr int kPathKinds = 5;

// What the group has for its paths; the same on all ranks.
struct Resources {
  Communicator* communicator = nullptr;  // knows the windows; null: no NCCL
  Communicator* plain = nullptr;         // knows none; null: not made
  std::string no_communicator;           // reasons, empty where there is one
  std::string no_windows;
};

// One call, ready to be queued. Pointers are device memory.
struct Transfer {
  const Plan& plan;
  const std::byte* send = nullptr;  // all that this rank offers
  std::byte* receive = nullptr;
  std::byte* scratch = nullptr;  // as many bytes as the path asked for
  StreamHandle stream = nullptr;
  const Device& device;
  const Resources& resources;
};

// A way to do a collective. The output may be exactly the own rows of the input.
class DevicePath {
 public:
  virtual ~DevicePath() = default;
  virtual PathKind kind() const = 0;
  virtual const char* name() const = 0;
  // Why this path cannot do it; empty if it can.
  virtual std::string refusal(const Problem& problem, const Resources& resources) const = 0;
  // Whether it sends from a window, so that other input has to be copied into one first.
  virtual bool sends_from_window() const { return false; }
  // Bytes of scratch memory; equal on all ranks.
  virtual size_t scratch_bytes(const Problem&) const { return 0; }
  // Queues the work. Does not wait.
  virtual void run(const Transfer& transfer) const = 0;
};

const DevicePath& path_of(PathKind kind);

}  // namespace symmoe
