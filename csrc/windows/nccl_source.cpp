#include "windows/nccl_source.h"

#include <utility>

#include "base/error.h"
#include "runtime/stream.h"

namespace symmoe {

NcclSource::NcclSource(std::shared_ptr<Device> device, std::shared_ptr<Communicator> communicator,
                       Agreement* agreement)
    : device_(std::move(device)), communicator_(std::move(communicator)), agreement_(agreement) {}

NcclSource::~NcclSource() { shut(); }

// The memory may outlive the communicator, in a view: it is given back by the library alone.
std::shared_ptr<void> NcclSource::allocate(size_t bytes) {
  const auto mem_free = communicator_->library().functions().mem_free;
  const auto give_back = [device = device_, mem_free](void* memory) {
    if (memory == nullptr || !device->usable()) return;
    const CurrentDevice current(*device);
    const RelaxedCapture relaxed(*device);
    mem_free(memory);
  };
  return {communicator_->allocate(bytes), give_back};
}

Window NcclSource::create(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const int rank = communicator_->rank();
  const RelaxedCapture relaxed(*device_);
  const std::string name =
      "window ordinal=" + std::to_string(last_ordinal_ + 1) + " bytes=" + std::to_string(bytes);

  // A rank that fails here would leave the others waiting inside the registration.
  Window window;
  window.bytes = bytes;
  std::string failure;
  try {
    window.memory = allocate(bytes);
    window.base = static_cast<std::byte*>(window.memory.get());
  } catch (const Error& error) {
    failure = error.what();
  }
  const std::string shortage = agree(*agreement_, rank, name, failure).failures;
  if (!shortage.empty()) throw OutOfMemory(shortage);

  void* handle = nullptr;
  try {
    handle = communicator_->register_window(window.base, bytes);
    if (handle == nullptr) failure = "NCCL registered the memory but gave no window";
  } catch (const Error& error) {
    failure = error.what();
  }
  window.ordinal = ++last_ordinal_;
  if (handle != nullptr) handles_.emplace(window.ordinal, handle);
  std::string refusal;
  try {
    refusal = agree(*agreement_, rank, name + " registered", failure).failures;
  } catch (...) {
    stranded_.push_back(window.memory);  // it must not go before its registration
    throw;
  }
  if (!refusal.empty()) {
    deregister(window);
    throw Unavailable(refusal);
  }
  return window;
}

void NcclSource::drop(const Window& window) {
  const std::lock_guard lock(mutex_);
  deregister(window);
}

void NcclSource::deregister(const Window& window) {
  const auto found = handles_.find(window.ordinal);
  if (found == handles_.end()) return;
  void* const handle = found->second;
  handles_.erase(found);
  try {
    communicator_->deregister_window(handle);
  } catch (...) {
    stranded_.push_back(window.memory);  // NCCL knows it still
    throw;
  }
}

const std::byte* NcclSource::address(int rank, uint32_t ordinal) {
  const std::lock_guard lock(mutex_);
  const auto found = handles_.find(ordinal);
  if (found == handles_.end()) {
    throw InvalidArgument("window " + std::to_string(ordinal) + " is not registered");
  }
  return static_cast<const std::byte*>(communicator_->peer_pointer(found->second, 0, rank));
}

void NcclSource::shut() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [ordinal, handle] : handles_) {
    try {
      communicator_->deregister_window(handle);
    } catch (const Error&) {
      communicator_->abort();  // the windows go with it, so that their memory can go as well
    }
  }
  handles_.clear();
}

}  // namespace symmoe
