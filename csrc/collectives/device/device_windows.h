#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/nccl/capabilities.h"
#include "runtime/nccl/communicator.h"
#include "windows/agreement.h"
#include "windows/device_source.h"
#include "windows/nccl_source.h"
#include "windows/peer_windows.h"
#include "windows/vmm_source.h"

namespace symmoe {

// Who makes the windows of a group of devices.
enum class WindowMaker : int { kAny = 0, kNccl = 1, kVmm = 2 };
constexpr int kWindowMakers = 3;

// What a choice of windows depends on; the same on all ranks.
struct WindowWishes {
  WindowMaker maker = WindowMaker::kAny;
  NcclCapabilities nccl;
  std::string no_communicator;  // why there is no NCCL; empty if there is
  bool own_kernels = true;      // whether own kernels are wanted
};

// The makers to try, best first. NCCL's windows serve its own kernels and ours; but where NCCL's
// kernels must not read windows it had better not know them, since it takes those kernels by
// itself.
std::vector<WindowMaker> makers_to_try(const WindowWishes& wishes);

// The windows of a group of devices, of whichever maker works first, as its own kernels see them.
class DeviceWindows : public WindowSource {
 public:
  // Local. `agreement` outlives it. A world of one makes its windows by itself.
  DeviceWindows(std::shared_ptr<Device> device, std::shared_ptr<Communicator> communicator,
                Agreement* agreement, int rank, int world, int64_t timeout_ns);

  // Collective. Takes the first maker for which `works` does not throw OutOfMemory or Unavailable
  // (all ranks alike); returns why there are no windows, empty if there are. `lost(reason)` is
  // called after NCCL could make none.
  std::string start(const WindowWishes& wishes, const std::function<void()>& works,
                    const std::function<void(const std::string&)>& lost);

  bool of_nccl() const { return nccl_ != nullptr; }
  // "NCCL", "VMM", or "" where there are none, or none that peers see.
  const char* maker() const { return nccl_ != nullptr ? "NCCL" : vmm_ != nullptr ? "VMM" : ""; }
  // Why own kernels cannot run; empty if they can.
  std::string no_peers() const;
  // For own kernels; null where they cannot run.
  const PeerWindows* peers() const { return peers_.get(); }

  Window create(size_t bytes) override;
  void drop(const Window& window) override;
  const std::byte* address(int rank, uint32_t ordinal) override;
  void refresh() override {}
  size_t mapped_bytes() const override;

  // Gives up all that peers have a part in; memory that views hold stays.
  void shut() noexcept;

 private:
  void take(WindowMaker maker, const WindowWishes& wishes);
  void let_go();

  std::shared_ptr<Device> device_;
  std::shared_ptr<Communicator> communicator_;
  Agreement* agreement_;
  int rank_;
  int world_;
  int64_t timeout_ns_;
  std::unique_ptr<DeviceSource> lone_;
  std::unique_ptr<NcclSource> nccl_;
  std::unique_ptr<VmmSource> vmm_;
  std::unique_ptr<PeerWindows> peers_;
  std::string no_peers_ = "the group has not begun";
};

}  // namespace symmoe
