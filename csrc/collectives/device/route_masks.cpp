#include "collectives/device/route_masks.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace symmoe {
namespace {

constexpr size_t kPlacesPerChunk = 4096;

// Of sizes of the host.
bool are_same(const kernels::RowShares& one, const kernels::RowShares& other) {
  return std::ranges::equal(one.begins, other.begins) &&
         std::ranges::equal(one.counts, other.counts);
}

uint64_t id_of(const CaptureState& capture) { return capture.active ? capture.id : 0; }

}  // namespace

MaskHashes::MaskHashes(std::shared_ptr<Device> device) : device_(std::move(device)) {}
MaskHashes::~MaskHashes() = default;

kernels::MaskHash* MaskHashes::take(StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  std::vector<kernels::MaskHash*>& mine = used_[stream];
  if (mine.empty() && fresh_.empty()) grow();
  std::vector<kernels::MaskHash*>& from = mine.empty() ? fresh_ : mine;
  kernels::MaskHash* const place = from.back();
  from.pop_back();
  return place;
}

void MaskHashes::give_back(kernels::MaskHash* place, StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  used_[stream].push_back(place);
}

// Also inside of a capture, which it does not become a part of.
void MaskHashes::grow() {
  const RelaxedCapture relaxed(*device_);
  if (filler_ == nullptr) filler_ = std::make_unique<Stream>(device_);
  DeviceMemory chunk(device_, kPlacesPerChunk * sizeof(kernels::MaskHash));
  device_->fill(chunk.get(), 0, chunk.size(), filler_->handle());
  filler_->synchronize();
  auto* const places = static_cast<kernels::MaskHash*>(chunk.get());
  for (size_t each = 0; each < kPlacesPerChunk; ++each) fresh_.push_back(places + each);
  chunks_.push_back(std::move(chunk));
}

bool DeviceRouting::needs_memory(StreamHandle stream, const CaptureState& capture) const {
  return memory_ == nullptr || stream_ != stream || capture_ != id_of(capture);
}

void DeviceRouting::give(uint64_t* memory, StreamHandle stream, const CaptureState& capture) {
  forget();
  hash_ = hashes_->take(stream);
  memory_ = memory;
  stream_ = stream;
  capture_ = id_of(capture);
}

RouteMask DeviceRouting::mask(const Device& device, kernels::RouteMaskLaunch launch) {
  if (memory_ == nullptr) throw InvalidArgument("a routing has no memory for its masks");
  if (!made_for_ || launch.shares.sizes != nullptr || !are_same(*made_for_, launch.shares)) {
    launch.mask = memory_;
    launch.hash = hash_;
    made_for_.reset();
    device.route_mask(launch, stream_);
    if (launch.shares.sizes == nullptr) made_for_ = launch.shares;
  }
  return {memory_, hash_};
}

void DeviceRouting::forget() {
  // A graph goes on using its place, for as long as nobody tells when it ends.
  if (hash_ != nullptr && capture_ == 0) hashes_->give_back(hash_, stream_);
  hash_ = nullptr;
  memory_ = nullptr;
  made_for_.reset();
}

}  // namespace symmoe
