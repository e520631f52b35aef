// Copies bytes to a window, for experts whose own kernel cannot write there.

#include "kernels/device/dev.h"
#include "kernels/device/grid.h"
#include "kernels/device/launch.h"

namespace symmoe::kernels {
namespace SYMMOE_PLATFORM {

constexpr int kUnitsAtOnce = 4;  // loads in flight per thread

// One after the other, a block's width apart, so that a warp's accesses touch whole lines.
template <typename Unit>
SYMMOE_DEVICE void copy_units(const char* source, char* destination, int64_t units) {
  const int64_t threads = dev::threads();
  const int64_t step = threads * dev::blocks() * kUnitsAtOnce;
  int64_t first = threads * dev::block() * kUnitsAtOnce + dev::thread();
  SYMMOE_UNROLL_BY(1)
  for (; first < units; first += step) {
    Unit unit[kUnitsAtOnce];
    SYMMOE_UNROLL
    for (int i = 0; i < kUnitsAtOnce; ++i) {
      const int64_t place = first + i * threads;
      if (place < units) unit[i] = dev::load<Unit>(source + place * int64_t{sizeof(Unit)});
    }
    SYMMOE_UNROLL
    for (int i = 0; i < kUnitsAtOnce; ++i) {
      const int64_t place = first + i * threads;
      if (place < units) dev::store(destination + place * int64_t{sizeof(Unit)}, unit[i]);
    }
  }
}

// `units` whole units follow the first `head` bytes; what is left over stands at the end.
template <typename Unit>
__global__ void __launch_bounds__(kMaxBlockThreads)
    copy_to_window(const CopyLaunch problem, const int64_t head, const int64_t units) {
  const char* const source = static_cast<const char*>(problem.source);
  char* const destination = static_cast<char*>(problem.destination);
  copy_units<Unit>(source + head, destination + head, units);
  const int64_t tail = head + units * int64_t{sizeof(Unit)};
  copy_units<uint8_t>(source, destination, head);
  copy_units<uint8_t>(source + tail, destination + tail, problem.bytes - tail);
}

}  // namespace SYMMOE_PLATFORM

namespace {

using namespace SYMMOE_PLATFORM;

template <typename Unit>
int launch(const CopyLaunch& problem, int multiprocessors, void* stream) {
  constexpr int64_t kUnit = sizeof(Unit);
  const int64_t head = std::min(problem.bytes, bytes_to_boundary(problem.destination) % kUnit);
  const int64_t units = (problem.bytes - head) / kUnit;
  const int64_t blocks =
      std::clamp<int64_t>(divided_up(units, int64_t{kMaxBlockThreads} * kUnitsAtOnce), 1,
                          useful_blocks(multiprocessors, kMaxBlockThreads));
  return dev::launch(copy_to_window<Unit>, static_cast<unsigned>(blocks), kMaxBlockThreads, stream,
                     problem, head, units);
}

}  // namespace

// In the largest units whose boundaries both sides share.
int launch_copy_to_window(const CopyLaunch& problem, int multiprocessors, void* stream) {
  if (problem.bytes == 0) return 0;
  const auto distance = reinterpret_cast<uintptr_t>(problem.source) -
                        reinterpret_cast<uintptr_t>(problem.destination);
  if (distance % 16 == 0) return launch<dev::Bits128>(problem, multiprocessors, stream);
  if (distance % 4 == 0) return launch<uint32_t>(problem, multiprocessors, stream);
  if (distance % 2 == 0) return launch<uint16_t>(problem, multiprocessors, stream);
  return launch<uint8_t>(problem, multiprocessors, stream);
}

}  // namespace symmoe::kernels
