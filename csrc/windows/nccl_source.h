#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/nccl/communicator.h"
#include "windows/agreement.h"
#include "windows/window.h"

namespace symmoe {

// Windows in device memory that NCCL knows: ncclMemAlloc, then ncclCommWindowRegister. One window
// per allocation, covering it. Ranks make and drop windows in the same order, so equal ordinals
// mean the same window everywhere, at the same offset.
class NcclSource : public WindowSource {
 public:
  // `agreement` outlives the source. After shut() the communicator may go.
  NcclSource(std::shared_ptr<Device> device, std::shared_ptr<Communicator> communicator,
             Agreement* agreement);
  ~NcclSource() override;

  // Collective. Throws OutOfMemory if some rank had no memory, and Unavailable if some rank's
  // registration failed or gave no window: then on all ranks, and nothing has changed.
  Window create(size_t bytes) override;

  // Deregisters, which is local. The caller has agreed with the peers that all do so, in ordinal
  // order, and no device uses the window any more.
  void drop(const Window& window) override;

  // As seen by this rank's kernels.
  const std::byte* address(int rank, uint32_t ordinal) override;

  void refresh() override {}
  size_t mapped_bytes() const override { return 0; }

  // Deregisters what is left, in ordinal order. Memory that views hold stays, and so does memory
  // that NCCL does not let go of.
  void shut() noexcept;

 private:
  // Memory must not go before its registration.
  struct Registration {
    void* handle;
    std::shared_ptr<void> memory;
  };

  std::shared_ptr<void> allocate(size_t bytes);
  void deregister(const Window& window);

  std::shared_ptr<Device> device_;
  std::shared_ptr<Communicator> communicator_;
  Agreement* agreement_;
  mutable std::mutex mutex_;
  uint32_t last_ordinal_ = 0;
  std::map<uint32_t, Registration> registrations_;  // by ordinal
};

}  // namespace symmoe
