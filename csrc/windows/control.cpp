#include "windows/control.h"

#include <string>
#include <utility>

#include "base/error.h"

namespace symmoe {

Control::Control(Mesh& mesh, size_t bytes, int64_t deadline_ns)
    : bytes_(bytes), segments_(static_cast<size_t>(mesh.world())) {
  const std::string self = std::to_string(mesh.rank());
  SharedMemory& own = segments_[static_cast<size_t>(mesh.rank())];
  own = SharedMemory::create(bytes, "symmoe:control:" + self);
  const Descriptor descriptor = own.release_descriptor();
  for (int rank = 0; rank < mesh.world(); ++rank) {
    if (rank == mesh.rank()) continue;
    mesh.send(rank, {Message::Kind::kControl, 0, bytes}, descriptor.get(), deadline_ns,
              [] {});  // the queue is empty still
  }

  for (int rank = 0; rank < mesh.world(); ++rank) {
    if (rank == mesh.rank()) continue;
    const Incoming incoming = mesh.expect(rank, "control segment", deadline_ns);
    if (incoming.message.kind != Message::Kind::kControl || incoming.message.bytes != bytes) {
      throw Mismatch("rank " + self + " has a control segment of " + std::to_string(bytes) +
                     " bytes, rank " + std::to_string(rank) + " announced one of " +
                     std::to_string(incoming.message.bytes) + " (message kind " +
                     std::to_string(static_cast<uint32_t>(incoming.message.kind)) + ")");
    }
    try {
      segments_[static_cast<size_t>(rank)] =
          SharedMemory::attach(incoming.descriptor.get(), bytes, SharedMemory::Access::kReadWrite);
    } catch (const SystemError& error) {
      throw SystemError("rank " + self + " cannot map the control segment of rank " +
                        std::to_string(rank) + ": " + error.what());
    }
  }
}

}  // namespace symmoe
