#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/device_memory.h"
#include "runtime/stream.h"
#include "windows/agreement.h"
#include "windows/window.h"

namespace symmoe {

// What own kernels expect of the tables below; the constants of the kernels and of the pool.
struct PeerLayout {
  int max_ranks = 0;      // that a kernel can serve
  uint32_t ordinals = 0;  // rows of the table of windows
  int roles = 0;          // signal pages: one per role and lane
  int lanes = 0;
  size_t page_bytes = 0;  // of one signal page, a multiple of its alignment
};

// Windows as this rank's own kernels see them, over either source (nccl_source.h, vmm_source.h): a
// source itself, to be put between a pool and the one that makes the windows. Beside the windows it
// keeps two tables in device memory, which kernels and graphs may hold for the group's life:
//
//   windows()         [ordinals][world]: where window `ordinal` of each rank lies for this device,
//                     in row `ordinal % ordinals`; null where there is no such window
//   pages(role, lane) [world]: where each rank's signal page lies for this device
//
// A rank's own entries are the addresses that its other kernels use (Window::base), never a second
// mapping of the same memory, which a device need not keep coherent within a kernel.
//
// Rows are written in `create` and `drop` alone, calls that all ranks make together, and are there
// before create returns. A kernel that runs meanwhile reads rows of other windows, which stay
// as they are; whoever drops a window has agreed with all ranks that no device uses it any more.
class PeerWindows : public WindowSource {
 public:
  // Local. `source` and `agreement` outlive it, and nobody else makes windows of `source`.
  PeerWindows(std::shared_ptr<Device> device, WindowSource& source, Agreement& agreement, int rank,
              int world, const PeerLayout& layout);

  // Collective, once, before the first window: makes the tables and the signal pages, zeroed on all
  // ranks before any rank returns. `refusal` is why this rank's kernels must not run, as far as it
  // knows; empty: nothing is against it. Where own kernels cannot run, refusal() says why
  // afterwards, and this is no error. Throws what ends the group: PeerLost, DeadlineExceeded.
  void start(const std::string& refusal);

  // Why own kernels cannot run; empty if they can. Equal on all ranks. A window that turns out to
  // be out of a peer's reach gives it a text in `create`, and then it stays: graphs made before
  // that go on, since the tables stay as well.
  std::string refusal() const;

  // Null before start, and where own kernels cannot run from the beginning.
  const void* const* windows() const;
  void* const* pages(int role, int lane) const;

  // Collective. As the source's, which also makes windows where own kernels cannot run.
  Window create(size_t bytes) override;
  // As the source's.
  void drop(const Window& window) override;
  const std::byte* address(int rank, uint32_t ordinal) override;
  void refresh() override { source_.refresh(); }
  size_t mapped_bytes() const override { return source_.mapped_bytes(); }

  // Bytes of this rank's signal pages.
  size_t signal_bytes() const { return signals_.bytes; }

 private:
  struct Row {
    uint32_t ordinal = 0;                 // 0: free
    std::vector<const std::byte*> bases;  // by rank
  };

  Row& row_of(uint32_t ordinal) { return rows_[ordinal % layout_.ordinals]; }
  std::vector<const std::byte*> addresses_of(const Window& window);
  void make_tables();
  void finish_queued() noexcept;
  void write_row(uint32_t ordinal, const std::vector<const std::byte*>& bases);
  void write(void* table, const std::vector<const std::byte*>& addresses);
  void settle(const std::string& reason);

  std::shared_ptr<Device> device_;
  WindowSource& source_;
  Agreement& agreement_;
  const int rank_;
  const int world_;
  const PeerLayout layout_;
  Window signals_;
  DeviceMemory windows_table_;
  DeviceMemory pages_table_;
  std::unique_ptr<Stream> stream_;  // for the tables alone; other streams may be in a capture
  mutable std::mutex mutex_;        // guards what follows
  std::string refusal_ = "own kernels were not started";
  std::vector<Row> rows_;
};

}  // namespace symmoe
