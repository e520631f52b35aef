#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "collectives/device/peer_calls.h"
#include "runtime/device_memory.h"
#include "runtime/stream.h"

namespace symmoe {

// The memory in which mask kernels leave their hashes. It has to be zero before its first use only,
// so that a mask costs one launch. A place goes back to the stream that it was used in: there, the
// next kernel comes behind the last one that reads it.
class MaskHashes {
 public:
  explicit MaskHashes(std::shared_ptr<Device> device);
  ~MaskHashes();

  // A place for a kernel on `stream`. Makes more memory where there is none left.
  kernels::MaskHash* take(StreamHandle stream);
  void give_back(kernels::MaskHash* place, StreamHandle stream);

 private:
  void grow();

  std::shared_ptr<Device> device_;
  std::mutex mutex_;
  std::unique_ptr<Stream> filler_;
  std::vector<DeviceMemory> chunks_;
  std::vector<kernels::MaskHash*> fresh_;
  std::map<StreamHandle, std::vector<kernels::MaskHash*>> used_;
};

// One batch's routing on the device, and the mask that was made of it. For one thread at a time.
class DeviceRouting {
 public:
  explicit DeviceRouting(std::shared_ptr<MaskHashes> hashes) : hashes_(std::move(hashes)) {}
  ~DeviceRouting() { forget(); }
  DeviceRouting(const DeviceRouting&) = delete;
  DeviceRouting& operator=(const DeviceRouting&) = delete;

  // Whether a call on `stream` needs new memory for a mask: there is none, or it is another
  // stream's, or a graph's. What a capture makes belongs to the graph, which makes it anew in each
  // replay; what was made before is not what a replay needs.
  bool needs_memory(StreamHandle stream, const CaptureState& capture) const;

  // Takes memory for `view.rows` masks, which the caller keeps as long as this object lives, or
  // until it gives other memory.
  void give(uint64_t* memory, StreamHandle stream, const CaptureState& capture);

  // The mask, made now on the stream of the memory, unless it was made before for the same rows of
  // the same ranks. What sizes on the device will say nobody knows, so a mask of such is one
  // call's. `launch` has everything but the outputs.
  RouteMask mask(const Device& device, kernels::RouteMaskLaunch launch);

  kernels::RouteMaskLaunch view;  // the caller's tensors; outputs are left out

 private:
  void forget();

  std::shared_ptr<MaskHashes> hashes_;
  uint64_t* memory_ = nullptr;
  kernels::MaskHash* hash_ = nullptr;
  StreamHandle stream_ = nullptr;
  uint64_t capture_ = 0;                        // 0: outside of captures
  std::optional<kernels::RowShares> made_for_;  // sizes of the host
};

}  // namespace symmoe
