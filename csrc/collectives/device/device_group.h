#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "collectives/device/device_engine.h"
#include "runtime/nccl/capabilities.h"
#include "runtime/nccl/library.h"
#include "windows/agreement.h"
#include "windows/peer_processes.h"

namespace symmoe {

struct DeviceGroupConfig {
  std::string back_end;  // path of the shared object
  int ordinal = 0;       // of the device
  std::vector<NcclLibrary::Candidate> nccl;
  bool allow_unsafe_nccl = false;
  void* borrowed = nullptr;  // an ncclComm_t of the same ranks; null: make an own one
  std::string no_windows;    // why none are to be tried; empty: try
  std::vector<pid_t> pids;   // of the ranks, as seen from here; 0: not seen
  DeviceEngineConfig engine;
};

// One rank of a group of devices, with all that it owns: the back end, NCCL's communicators and the
// engine on top. Members are destroyed in the opposite order.
class DeviceGroup {
 public:
  // Collective. Throws Unavailable, on all ranks alike, if some rank has no device. Without NCCL
  // the group works, but every call that needs it is left to the caller (see DeviceEngine::run).
  DeviceGroup(int rank, int world, const DeviceGroupConfig& config,
              std::unique_ptr<Agreement> agreement);

  DeviceEngine& engine() { return *engine_; }
  const Device& device() const { return *device_; }
  int nccl_version() const { return library_ == nullptr ? 0 : library_->version(); }
  std::string nccl_path() const { return library_ == nullptr ? "" : library_->path(); }
  const std::string& no_communicator() const { return no_communicator_; }

 private:
  void open_device(const DeviceGroupConfig& config);
  void open_nccl(const DeviceGroupConfig& config);
  void connect(const DeviceGroupConfig& config);

  int rank_;
  int world_;
  std::unique_ptr<Agreement> agreement_;
  PeerProcesses peers_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<const NcclLibrary> library_;
  NcclCapabilities capabilities_;
  int blocks_ = 1;  // of one own kernel
  std::string no_communicator_;
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Communicator> plain_;
  std::unique_ptr<DeviceEngine> engine_;
};

}  // namespace symmoe
