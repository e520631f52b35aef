#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "fake_nccl/refusal.h"

namespace symmoe::fake {

// What the handles stand for that callers hold, so that one that is used after its end, or in the
// wrong place, is refused.
template <typename Object>
class Handles {
 public:
  explicit Handles(const char* name) : name_(name) {}

  void* add(std::shared_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    void* const handle = object.get();
    objects_[handle] = std::move(object);
    return handle;
  }

  std::shared_ptr<Object> at(void* handle) const {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) {
      throw Refusal{kNcclInvalidArgument, std::string("no such ") + name_};
    }
    return found->second;
  }

  void remove(void* handle) {
    const std::lock_guard lock(mutex_);
    objects_.erase(handle);
  }

  template <typename Condition>
  void remove_if(Condition&& condition) {
    const std::lock_guard lock(mutex_);
    std::erase_if(objects_, [&](const auto& entry) { return condition(*entry.second); });
  }

  size_t count() const {
    const std::lock_guard lock(mutex_);
    return objects_.size();
  }

 private:
  const char* name_;
  mutable std::mutex mutex_;
  std::map<void*, std::shared_ptr<Object>> objects_;
};

}  // namespace symmoe::fake
