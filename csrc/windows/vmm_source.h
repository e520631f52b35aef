#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/shared_device_memory.h"
#include "windows/agreement.h"
#include "windows/mesh.h"
#include "windows/window.h"

namespace symmoe {

// Windows in device memory without NCCL: each rank makes memory that has a file descriptor (VMM of
// CUDA and HIP), hands that to its peers over sockets as the CPU's windows are, and maps theirs.
// For the processes of one host, of one user. Ranks make and drop windows in the same order, so
// equal ordinals mean the same window everywhere.
class VmmSource : public WindowSource {
 public:
  // Collective. Connects the ranks. Throws Unavailable, on all ranks alike, with the reason where
  // such windows cannot be: ranks on different hosts, a device without VMM, devices that do not
  // reach each other. `agreement` outlives the source; `timeout_ns` bounds every wait for a peer.
  static std::unique_ptr<VmmSource> connect(const std::shared_ptr<Device>& device,
                                            Agreement& agreement, int rank, int world,
                                            int64_t timeout_ns);
  ~VmmSource() override;

  // Collective. Throws OutOfMemory if some rank had no memory, and Unavailable if some rank could
  // not map what others made: then on all ranks, and nothing has changed.
  Window create(size_t bytes) override;

  // Unmaps the peers' parts, which is local. The caller has agreed with the peers that all do so,
  // in ordinal order, and no device uses the window any more.
  void drop(const Window& window) override;

  const std::byte* address(int rank, uint32_t ordinal) override;

  void refresh() override {}
  size_t mapped_bytes() const override;

  // Unmaps all that peers made, and tells them that this rank leaves. Own memory that views hold
  // stays. Idempotent; the destructor does it too.
  void shut() noexcept;

 private:
  // What this rank has of one window.
  struct Mapped {
    std::shared_ptr<SharedDeviceMemory> own;
    std::vector<SharedDeviceMemory> peers;  // by rank, the own entry empty
  };

  VmmSource(std::shared_ptr<Device> device, std::unique_ptr<Mesh> mesh, Agreement& agreement,
            int64_t timeout_ns);
  std::string exchange(uint32_t ordinal, size_t bytes, int descriptor,
                       std::vector<SharedDeviceMemory>* peers);

  std::shared_ptr<Device> device_;
  std::unique_ptr<Mesh> mesh_;
  Agreement& agreement_;
  const int64_t timeout_ns_;
  mutable std::mutex mutex_;
  uint32_t last_ordinal_ = 0;
  std::map<uint32_t, Mapped> windows_;  // by ordinal
};

}  // namespace symmoe
