#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/device_table.h"

namespace symmoe {

// One device of an opened back end. Thread-safe, and it keeps no state of its threads: other
// libraries of the process share the runtime's "current device", so every method makes this device
// the current one for its own duration and then puts the old one back.
//
// After a fork the child has nothing of the device; all methods throw Closed there.
class Device {
 public:
  // Loads the back end `library` and takes device `ordinal` of it. Throws Unavailable with the
  // reason: no such library, another ABI, no driver, no such device.
  static std::shared_ptr<Device> open(const std::string& library, int ordinal);

  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceTable& table() const { return *table_; }
  int ordinal() const { return ordinal_; }
  const DeviceProperties& properties() const { return properties_; }
  const char* kind() const { return table_->kind; }

  // Throws OutOfMemory or DeviceError, "<what>: <the runtime's text>", unless the status is
  // kDeviceOk. For the calling thread's last call of the table.
  void require(int status, const char* what) const;

  // Free and total bytes of the device.
  void memory(size_t* free_bytes, size_t* total_bytes) const;

  // These queue work on the stream. Sizes and pointers are the caller's responsibility.
  void copy(void* destination, const void* source, size_t bytes, StreamHandle stream) const;
  void fill(void* memory, int byte, size_t bytes, StreamHandle stream) const;
  void topk_reduce(const kernels::TopkReduceLaunch& launch, StreamHandle stream) const;
  void rank_reduce(const kernels::RankReduceLaunch& launch, StreamHandle stream) const;
  void copy_to_window(const kernels::CopyLaunch& launch, StreamHandle stream) const;
  void route_mask(const kernels::RouteMaskLaunch& launch, StreamHandle stream) const;
  void pull_reduce(const kernels::PullLaunch& launch, StreamHandle stream) const;
  void combine(const kernels::CombineLaunch& launch, StreamHandle stream) const;
  void apply_epilogue(const kernels::EpilogueLaunch& launch, StreamHandle stream) const;
  void pull_epilogue(const kernels::PullEpilogueLaunch& launch, StreamHandle stream) const;

  // Why this device cannot share memory with the devices of other processes or, if that is not
  // empty, not with the one at `peer_bus_id` of this host; empty if it can.
  std::string shared_refusal(const std::string& peer_bus_id = "") const;

  // Blocks until all work queued so far is done.
  void synchronize(StreamHandle stream) const;
  // Whether all work queued so far is done.
  bool idle(StreamHandle stream) const;
  // Throws InvalidArgument if the stream is in a capture that has failed.
  CaptureState capture_state(StreamHandle stream) const;

  // Makes this device the calling thread's current one for good: for threads of our own. A new
  // thread has device 0, and CUDA makes a context there, with memory, when that is put back.
  void adopt_thread() const;

  // False in a fork of the process that opened the device.
  bool usable() const;

 private:
  Device(const DeviceTable* table, int ordinal, const DeviceProperties& properties);

  const DeviceTable* table_;
  int ordinal_;
  DeviceProperties properties_;
  uint64_t fork_generation_;
};

// Makes a device the calling thread's current one while it lives. For direct calls of the table;
// the methods of Device and the classes over it do so themselves.
class CurrentDevice {
 public:
  explicit CurrentDevice(const Device& device);  // throws Closed in a forked child
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  const Device& device_;
  int previous_;
};

}  // namespace symmoe
