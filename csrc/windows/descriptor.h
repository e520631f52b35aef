#pragma once

#include <cstdint>

namespace symmoe {

// Owns a file descriptor of this process alone: close-on-exec is up to who opened it, and a forked
// child loses it (fork_guard.h), so there the destructor leaves the number alone.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value);
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return value_; }
  explicit operator bool() const { return value_ >= 0; }
  void reset() noexcept;

 private:
  int value_ = -1;
  uint64_t generation_ = 0;
};

}  // namespace symmoe
