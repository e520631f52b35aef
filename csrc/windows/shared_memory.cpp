#include "windows/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"
#include "windows/available_memory.h"
#include "windows/fork_guard.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace symmoe {
namespace {

// Between two pieces of this size the available memory is looked at again, since the other ranks
// of the host take theirs at the same time.
constexpr size_t kPopulatePiece = size_t{256} << 20;

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t whole_pages(size_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

[[noreturn]] void throw_out_of_memory(size_t bytes, const std::string& why) {
  throw OutOfMemory("no memory for a window of " + std::to_string(bytes) + " bytes: " + why);
}

// `bytes` of a window of `total` bytes are still to be taken. One sixteenth on top is for page
// tables and for what else happens meanwhile.
void require_available(size_t bytes, size_t total) {
  const AvailableMemory available = available_memory();
  if (bytes + bytes / 16 > available.bytes) {
    throw_out_of_memory(
        total, std::to_string(available.bytes) + " bytes are available (" + available.source + ")");
  }
}

int make_memfd(const std::string& name) {
  // The first form is refused by older kernels, the second by kernels set to forbid executable
  // memory files.
  int descriptor = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (descriptor < 0 && errno == EINVAL) {
    descriptor = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }
  if (descriptor < 0) throw_errno("memfd_create");
  return descriptor;
}

void resize(int descriptor, size_t mapped, size_t bytes) {
  int result = 0;
  do {
    result = ftruncate(descriptor, static_cast<off_t>(mapped));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return;
  if (errno == EFBIG || errno == EINVAL) throw_out_of_memory(bytes, "larger than a file may be");
  if (errno == ENOMEM || errno == ENOSPC) throw_out_of_memory(bytes, "ftruncate refused the size");
  throw_errno("ftruncate of a window to " + std::to_string(mapped) + " bytes");
}

// Before Linux 5.14. Touching a page that cannot be had would kill the process; fallocate reports.
void populate_by_touch(int descriptor, std::byte* data, size_t mapped, size_t bytes) {
  int result = 0;
  do {
    result = fallocate(descriptor, 0, 0, static_cast<off_t>(mapped));
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    if (errno == ENOMEM || errno == ENOSPC) throw_out_of_memory(bytes, "fallocate found no memory");
    throw_errno("fallocate of " + std::to_string(mapped) + " bytes");
  }
  for (size_t at = 0; at < mapped; at += page_bytes()) {
    *static_cast<volatile std::byte*>(data + at) = std::byte{0};
  }
}

void populate(int descriptor, std::byte* data, size_t mapped, size_t bytes) {
  for (size_t at = 0; at < mapped;) {
    const size_t piece = std::min(kPopulatePiece, mapped - at);
    if (at > 0) require_available(mapped - at, bytes);
    if (madvise(data + at, piece, MADV_POPULATE_WRITE) == 0) {
      at += piece;
    } else if (errno == EINVAL) {
      return populate_by_touch(descriptor, data, mapped, bytes);
    } else if (errno == ENOMEM || errno == EFAULT) {
      throw_out_of_memory(bytes, "no memory after " + std::to_string(at) + " bytes");
    } else if (errno != EINTR && errno != EAGAIN) {
      throw_errno("madvise(MADV_POPULATE_WRITE) of " + std::to_string(piece) + " bytes");
    }
  }
}

}  // namespace

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      generation_(other.generation_) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    reset();
    descriptor_ = std::move(other.descriptor_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
    generation_ = other.generation_;
  }
  return *this;
}

void SharedMemory::reset() noexcept {
  descriptor_.reset();
  // In a forked child the range is not ours any more: something else may be mapped there.
  if (data_ != nullptr && generation_ == fork_generation()) munmap(data_, mapped_bytes_);
  data_ = nullptr;
  bytes_ = 0;
  mapped_bytes_ = 0;
}

SharedMemory SharedMemory::create(size_t bytes, const std::string& name) {
  if (bytes == 0) throw InvalidArgument("a window of 0 bytes was asked for");
  if (bytes > std::numeric_limits<size_t>::max() / 4) {
    throw_out_of_memory(bytes, "larger than the address space");
  }
  require_available(bytes, bytes);

  SharedMemory memory;
  memory.bytes_ = bytes;
  memory.mapped_bytes_ = whole_pages(bytes);
  memory.descriptor_ = Descriptor(make_memfd(name));
  const int descriptor = memory.descriptor_.get();
  resize(descriptor, memory.mapped_bytes_, bytes);
  memory.map(descriptor, Access::kReadWrite);
  populate(descriptor, memory.data_, memory.mapped_bytes_, bytes);
  if (fcntl(descriptor, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    throw_errno("fcntl(F_ADD_SEALS) on a window");
  }
  return memory;
}

SharedMemory SharedMemory::attach(int descriptor, size_t bytes, Access access) {
  if (bytes == 0 || bytes > std::numeric_limits<size_t>::max() / 4) {
    throw SystemError("a peer's window cannot have " + std::to_string(bytes) + " bytes");
  }
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0) throw_errno("fcntl(F_GET_SEALS) on a peer's window");
  if ((seals & kSizeSeals) != kSizeSeals) {
    throw SystemError("a peer's window is not sealed against a change of its size (seals " +
                      std::to_string(seals) + ")");
  }
  struct stat status{};
  if (fstat(descriptor, &status) != 0) throw_errno("fstat of a peer's window");
  if (status.st_size < 0 || static_cast<size_t>(status.st_size) < whole_pages(bytes)) {
    throw SystemError("a peer's window has " + std::to_string(status.st_size) +
                      " bytes, less than the " + std::to_string(bytes) + " it announced");
  }

  SharedMemory memory;
  memory.bytes_ = bytes;
  memory.mapped_bytes_ = whole_pages(bytes);
  try {
    memory.map(descriptor, access);
  } catch (const OutOfMemory& error) {
    throw SystemError(std::string("a peer's window cannot be mapped: ") + error.what());
  }
  // Only saves faults later: the owner has already taken the pages.
  madvise(memory.data_, memory.mapped_bytes_, MADV_POPULATE_READ);
  return memory;
}

void SharedMemory::map(int descriptor, Access access) {
  // Reserve enough to hold an aligned range, map over that, and give back what sticks out.
  const size_t reserved_bytes = mapped_bytes_ + kAlignment;
  void* const reserved =
      mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) throw_out_of_memory(bytes_, "no room in the address space");
  const auto start = reinterpret_cast<uintptr_t>(reserved);
  const size_t before = (kAlignment - start % kAlignment) % kAlignment;
  std::byte* const aligned = static_cast<std::byte*>(reserved) + before;

  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  if (mmap(aligned, mapped_bytes_, protection, MAP_SHARED | MAP_FIXED, descriptor, 0) ==
      MAP_FAILED) {
    const int error = errno;
    munmap(reserved, reserved_bytes);
    errno = error;
    if (errno == ENOMEM) throw_out_of_memory(bytes_, "mmap found no memory");
    throw_errno("mmap of a window of " + std::to_string(bytes_) + " bytes");
  }
  if (before > 0) munmap(reserved, before);
  munmap(aligned + mapped_bytes_, kAlignment - before);

  data_ = aligned;
  generation_ = fork_generation();
  // Requests, all of them: nothing depends on the answers, and older kernels know not all.
  madvise(data_, mapped_bytes_, MADV_HUGEPAGE);
  madvise(data_, mapped_bytes_, MADV_DONTFORK);
  madvise(data_, mapped_bytes_, MADV_DONTDUMP);
}

}  // namespace symmoe
