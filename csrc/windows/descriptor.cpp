#include "windows/descriptor.h"

#include <utility>

#include "windows/fork_guard.h"

namespace symmoe {

Descriptor::Descriptor(int value) : value_(value), generation_(fork_generation()) {
  if (value_ >= 0) fork_guard::watch(value_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept
    : value_(std::exchange(other.value_, -1)), generation_(other.generation_) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    value_ = std::exchange(other.value_, -1);
    generation_ = other.generation_;
  }
  return *this;
}

void Descriptor::reset() noexcept {
  if (value_ >= 0 && generation_ == fork_generation()) fork_guard::close_watched(value_);
  value_ = -1;
}

}  // namespace symmoe
