#include "fake_nccl/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "fake_nccl/refusal.h"

namespace symmoe::fake {
namespace {

[[noreturn]] void refuse(NcclResult code, const std::string& what) {
  throw Refusal{code, what + ": " + std::system_category().message(errno)};
}

}  // namespace

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
  close_descriptor();
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void SharedMemory::close_descriptor() {
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
}

SharedMemory SharedMemory::create(size_t bytes, const char* name) {
  const std::string what = "out of memory: " + std::to_string(bytes) + " bytes";
  SharedMemory memory;
  memory.bytes_ = bytes;
  memory.descriptor_ = memfd_create(name, MFD_CLOEXEC);
  if (memory.descriptor_ < 0) refuse(kNcclUnhandledCudaError, what);
  if (ftruncate(memory.descriptor_, static_cast<off_t>(bytes)) != 0) {
    refuse(kNcclUnhandledCudaError, what);
  }
  memory.map(memory.descriptor_, what, kNcclUnhandledCudaError);
  return memory;
}

SharedMemory SharedMemory::attach(int32_t pid, int descriptor, size_t bytes) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) refuse(kNcclSystemError, "memory of process " + std::to_string(pid));
  SharedMemory memory;
  memory.descriptor_ = opened;
  struct stat status{};
  if (fstat(opened, &status) != 0) refuse(kNcclSystemError, path);
  if (static_cast<size_t>(status.st_size) < bytes) {
    throw Refusal{kNcclSystemError, path + " is too small to be what was looked for"};
  }
  memory.bytes_ = bytes;
  memory.map(opened, path, kNcclSystemError);
  memory.close_descriptor();
  return memory;
}

void SharedMemory::map(int descriptor, const std::string& what, NcclResult failure) {
  void* const mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) refuse(failure, what);
  data_ = static_cast<std::byte*>(mapped);
}

}  // namespace symmoe::fake
