#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "windows/mesh.h"
#include "windows/shared_memory.h"
#include "windows/window.h"

namespace symmoe {

// Windows in shared memory between the processes of one host. The owner maps a window for reading
// and writing, its peers for reading only.
//
// All methods may be called from several threads; a look-up of a known window never waits for
// another thread that maps a new one. `mesh` must outlive the source. Reads every message of the
// mesh, so whatever else uses the mesh (Control) must have finished.
class MemfdSource : public WindowSource {
 public:
  // `timeout_ns` bounds every wait for a peer.
  MemfdSource(Mesh& mesh, int64_t timeout_ns);

  // Also throws PeerLost, DeadlineExceeded or SystemError while announcing: the group is of no use
  // then.
  Window create(size_t bytes) override;
  void drop(const Window& window) override;
  const std::byte* address(int rank, uint32_t ordinal) override;
  void refresh() override;
  size_t mapped_bytes() const override { return mapped_bytes_.load(); }

 private:
  // By ordinal; nullptr once dropped.
  using Table = std::unordered_map<uint32_t, std::shared_ptr<SharedMemory>>;

  Table& own_table() { return tables_[static_cast<size_t>(mesh_.rank())]; }
  const std::byte* find(int rank, uint32_t ordinal) const;
  void take_in(int rank);
  std::shared_ptr<SharedMemory> attach(int rank, const Incoming& announced) const;
  void announce(const Message& message, int descriptor);

  Mesh& mesh_;
  const int64_t timeout_ns_;
  std::mutex intake_mutex_;  // one thread at a time turns messages into mappings, in order
  mutable std::mutex table_mutex_;
  std::vector<Table> tables_;  // by rank, own windows included
  uint32_t next_ordinal_ = 1;  // guarded by table_mutex_
  std::atomic<size_t> mapped_bytes_ = 0;
};

}  // namespace symmoe
