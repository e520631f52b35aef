#include "collectives/device/device_windows.h"

#include <utility>

#include "base/error.h"
#include "collectives/device/path.h"
#include "kernels/device/signal_page.h"
#include "pool/buffer.h"

namespace symmoe {
namespace {

constexpr const char* kNotWanted =
    "kernels of symmoe's own are left out (Config.paths, SYMMOE_PATHS)";

// Own kernels reduce; nothing else has signals.
PeerLayout layout_of_kernels() {
  return {.max_ranks = kernels::kMaxPeers,
          .ordinals = kernels::kMaxOrdinals,
          .roles = 1,
          .lanes = kMaxLanes,
          .page_bytes = kernels::kSignalPageBytes};
}

const char* name_of(WindowMaker maker) { return maker == WindowMaker::kNccl ? "NCCL" : "VMM"; }

}  // namespace

std::vector<WindowMaker> makers_to_try(const WindowWishes& wishes) {
  const bool nccl = wishes.no_communicator.empty() && wishes.nccl.windows;
  const bool serves_nccl = nccl && wishes.nccl.direct;
  const bool serves_us = nccl && wishes.own_kernels && wishes.nccl.peer_pointers;
  std::vector<WindowMaker> makers;
  if (serves_nccl) makers.push_back(WindowMaker::kNccl);
  if (wishes.own_kernels) makers.push_back(WindowMaker::kVmm);
  if (!serves_nccl && serves_us) makers.push_back(WindowMaker::kNccl);
  if (wishes.maker != WindowMaker::kAny) {
    std::erase_if(makers, [&](WindowMaker maker) { return maker != wishes.maker; });
  }
  return makers;
}

DeviceWindows::DeviceWindows(std::shared_ptr<Device> device,
                             std::shared_ptr<Communicator> communicator, Agreement* agreement,
                             int rank, int world, int64_t timeout_ns)
    : device_(std::move(device)),
      communicator_(std::move(communicator)),
      agreement_(agreement),
      rank_(rank),
      world_(world),
      timeout_ns_(timeout_ns) {}

std::string DeviceWindows::start(const WindowWishes& wishes, const std::function<void()>& works,
                                 const std::function<void(const std::string&)>& lost) {
  if (world_ == 1) {
    lone_ = std::make_unique<DeviceSource>(device_);
    peers_ = std::make_unique<PeerWindows>(device_, *lone_, *agreement_, rank_, world_,
                                           layout_of_kernels());
    peers_->start(wishes.own_kernels ? "" : kNotWanted);
    no_peers_ = peers_->refusal();
    return "";
  }
  // What NCCL lacks is the first thing to say where nothing else can be tried either.
  std::string reasons =
      wishes.no_communicator.empty() ? wishes.nccl.no_direct : wishes.no_communicator;
  const std::vector<WindowMaker> makers = makers_to_try(wishes);
  for (const WindowMaker maker : makers) {
    std::string failure;
    try {
      take(maker, wishes);
      works();
      no_peers_ = peers_->refusal();
      return "";
    } catch (const OutOfMemory& error) {  // these two are met by all ranks in the same place
      failure = error.what();
    } catch (const Unavailable& error) {
      failure = error.what();
    }
    if (!reasons.empty()) reasons += "; ";
    reasons += std::string(name_of(maker)) + ": " + failure;
    if (maker == WindowMaker::kNccl) lost(reasons);
    let_go();
  }
  if (reasons.empty()) reasons = "no maker of windows is left to try (SYMMOE_WINDOW_SOURCE)";
  no_peers_ = reasons;
  return reasons;
}

void DeviceWindows::take(WindowMaker maker, const WindowWishes& wishes) {
  WindowSource* source = nullptr;
  std::string refusal = wishes.own_kernels ? "" : kNotWanted;
  if (maker == WindowMaker::kNccl) {
    nccl_ = std::make_unique<NcclSource>(device_, communicator_, agreement_);
    source = nccl_.get();
    if (refusal.empty()) refusal = wishes.nccl.no_peer_pointers;
  } else {
    vmm_ = VmmSource::connect(device_, *agreement_, rank_, world_, timeout_ns_);
    source = vmm_.get();
  }
  peers_ = std::make_unique<PeerWindows>(device_, *source, *agreement_, rank_, world_,
                                         layout_of_kernels());
  peers_->start(refusal);
  // These windows are of no use to NCCL.
  if (maker == WindowMaker::kVmm && !peers_->refusal().empty()) {
    throw Unavailable(peers_->refusal());
  }
}

void DeviceWindows::let_go() {
  peers_.reset();
  nccl_.reset();
  vmm_.reset();
}

std::string DeviceWindows::no_peers() const {
  return no_peers_.empty() && peers_ != nullptr ? peers_->refusal() : no_peers_;
}

Window DeviceWindows::create(size_t bytes) {
  if (peers_ == nullptr) throw Unavailable("there are no windows: " + no_peers_);
  return peers_->create(bytes);
}

void DeviceWindows::drop(const Window& window) {
  if (peers_ != nullptr) peers_->drop(window);
}

const std::byte* DeviceWindows::address(int rank, uint32_t ordinal) {
  if (peers_ == nullptr) throw Unavailable("there are no windows: " + no_peers_);
  return peers_->address(rank, ordinal);
}

size_t DeviceWindows::mapped_bytes() const {
  return peers_ == nullptr ? 0 : peers_->mapped_bytes();
}

void DeviceWindows::shut() noexcept {
  if (nccl_ != nullptr) nccl_->shut();
  if (vmm_ != nullptr) vmm_->shut();
}

}  // namespace symmoe
