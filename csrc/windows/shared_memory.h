#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "windows/descriptor.h"

namespace symmoe {

// A piece of memory without a name that several processes map (memfd). Nothing of it is left when
// the last process has unmapped it or ended.
//
// Its size is sealed, so that no peer can shrink it and make the others fault. A forked child does
// not inherit the mapping; there the object is an empty shell.
class SharedMemory {
 public:
  static constexpr size_t kAlignment = size_t{2} << 20;

  enum class Access { kRead, kReadWrite };

  SharedMemory() = default;
  ~SharedMemory() { reset(); }
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Zeroed memory whose pages are all present. `name` shows in /proc/PID/maps. Throws OutOfMemory
  // also when the request exceeds what is available now, before any page is taken.
  static SharedMemory create(size_t bytes, const std::string& name);

  // Maps memory that another process created. Does not take the descriptor. Throws SystemError if
  // the memory can still shrink or is smaller than `bytes` (reading it could fault then), and if it
  // cannot be mapped: no OutOfMemory, which is about memory that this process asked for.
  static SharedMemory attach(int descriptor, size_t bytes, Access access);

  std::byte* data() const { return data_; }  // 2 MiB aligned; nullptr if empty
  size_t bytes() const { return bytes_; }    // as asked for; the mapping is whole pages

  // The creator's descriptor, to hand to peers; -1 if it was released or this was attached.
  int descriptor() const { return descriptor_.get(); }

  // The memory lives on without it. To be given up as soon as every peer has one.
  Descriptor release_descriptor() { return std::move(descriptor_); }

  void reset() noexcept;

 private:
  void map(int descriptor, Access access);

  Descriptor descriptor_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  size_t mapped_bytes_ = 0;
  uint64_t generation_ = 0;
};

}  // namespace symmoe
