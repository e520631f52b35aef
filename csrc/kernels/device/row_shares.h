#pragma once

#include "kernels/device/dev.h"
#include "kernels/device/launch.h"
#include "kernels/device/report.h"

// Where the ranks' shares of the rows lie, as a block has looked it up.
namespace symmoe::kernels::SYMMOE_PLATFORM {

struct ShareTable {
  int64_t begin[kMaxPeers];
  int64_t count[kMaxPeers];
};

SYMMOE_DEVICE int64_t size_at(const RowShares& shares, int rank) {
  return shares.sizes == nullptr ? shares.counts[rank] : dev::load<int32_t>(shares.sizes + rank);
}

SYMMOE_DEVICE int64_t begin_of(const RowShares& shares, int rank) {
  if (shares.sizes == nullptr) return shares.begins[rank];
  if (shares.padded_to > 0) return rank * shares.padded_to;
  int64_t begin = 0;
  for (int before = 0; before < rank; ++before) begin += size_at(shares, before);
  return begin;
}

// Whether rank `rank`'s share lies where it may: the same answer on all ranks that have the same
// sizes. Sizes of the host are the host's to check.
SYMMOE_DEVICE bool fits(const RowShares& shares, int rank, int64_t begin, int64_t size,
                        Fault* fault) {
  if (shares.sizes == nullptr) return true;
  const int64_t limit = shares.padded_to > 0 ? shares.padded_to : shares.rows - begin;
  if (size >= 0 && size <= limit) return true;
  report(fault, Fault::kSizesWrong, rank, limit, size);
  return false;
}

// Fills the table, by all threads of the block, which may read it afterwards. With one wrong size,
// which is reported if there is a fault to report in, nobody has rows.
SYMMOE_DEVICE void read_shares(const RowShares& shares, int world, Fault* fault,
                               ShareTable& table) {
  const int first = static_cast<int>(dev::thread());
  const int threads = static_cast<int>(dev::threads());
  bool right = true;
  for (int rank = first; rank < world; rank += threads) {
    table.begin[rank] = begin_of(shares, rank);
    table.count[rank] = size_at(shares, rank);
    right = fits(shares, rank, table.begin[rank], table.count[rank], fault) && right;
  }
  if (!dev::sync_block_and(right)) {
    for (int rank = first; rank < world; rank += threads) table.count[rank] = 0;
  }
  dev::sync_block();
}

// Tells of rows, asked for in ascending order, whether they are in any rank's share.
class ShareCursor {
 public:
  SYMMOE_DEVICE bool owns(const ShareTable& table, int world, int64_t row) {
    while (rank_ < world && row >= table.begin[rank_] + table.count[rank_]) ++rank_;
    return rank_ < world && row >= table.begin[rank_];
  }

 private:
  int rank_ = 0;
};

}  // namespace symmoe::kernels::SYMMOE_PLATFORM
