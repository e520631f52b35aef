#include "windows/nccl_source.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/stream.h"

namespace symmoe {
namespace {

// Whatever comes to lie where it was would count as the window.
void keep_for_good(std::shared_ptr<void> memory) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<void>>;  // outlives all destructors
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(memory));
}

}  // namespace

NcclSource::NcclSource(std::shared_ptr<Device> device, std::shared_ptr<Communicator> communicator,
                       Agreement* agreement)
    : device_(std::move(device)), communicator_(std::move(communicator)), agreement_(agreement) {}

NcclSource::~NcclSource() { shut(); }

// The memory may outlive the communicator, in a view: it is given back by the library alone.
std::shared_ptr<void> NcclSource::allocate(size_t bytes) {
  const auto mem_free = communicator_->library().functions().mem_free;
  const auto give_back = [device = device_, mem_free](void* memory) {
    if (memory == nullptr || !device->usable()) return;
    try {
      const CurrentDevice current(*device);
      const RelaxedCapture relaxed(*device);
      mem_free(memory);
    } catch (const Error&) {
      // The runtime is gone, as at the end of the process, and the memory with it.
    }
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
  if (handle != nullptr)
    registrations_.emplace(window.ordinal, Registration{handle, window.memory});
  const std::string refusal = agree(*agreement_, rank, name + " registered", failure).failures;
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
  const auto found = registrations_.find(window.ordinal);
  if (found == registrations_.end()) return;
  const RelaxedCapture relaxed(*device_);
  communicator_->deregister_window(found->second.handle);
  registrations_.erase(found);
}

const std::byte* NcclSource::address(int rank, uint32_t ordinal) {
  const std::lock_guard lock(mutex_);
  const auto found = registrations_.find(ordinal);
  if (found == registrations_.end()) {
    throw InvalidArgument("window " + std::to_string(ordinal) + " is not registered");
  }
  return static_cast<const std::byte*>(communicator_->peer_pointer(found->second.handle, 0, rank));
}

void NcclSource::shut() noexcept {
  if (!device_->usable()) return;  // a fork: all of it is its parent's
  const std::lock_guard lock(mutex_);
  try {
    const RelaxedCapture relaxed(*device_);
    while (!registrations_.empty()) {
      communicator_->deregister_window(registrations_.begin()->second.handle);
      registrations_.erase(registrations_.begin());
    }
  } catch (const Error&) {
    communicator_->abort();  // the windows go with it, so that their memory can go as well
  }
  if (!communicator_->gone()) {
    for (auto& [ordinal, registration] : registrations_) {
      keep_for_good(std::move(registration.memory));
    }
  }
  registrations_.clear();
}

}  // namespace symmoe
