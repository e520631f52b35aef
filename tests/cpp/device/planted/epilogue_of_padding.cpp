// The bug: rows are finished that there is room for, but that nobody has, scales included.

#include "kernels/device/row_shares.h"

#ifdef SYMMOE_PLANT
namespace symmoe::kernels::SYMMOE_PLATFORM {
inline void read_room(const RowShares& shares, int world, Fault* fault, ShareTable& table) {
  read_shares(shares, world, fault, table);
  for (int rank = 0; rank < world; ++rank) table.count[rank] = shares.output_rows;
  dev::sync_block();
}
}  // namespace symmoe::kernels::SYMMOE_PLATFORM
#define read_shares read_room
#endif

#include "finishing.h"

int main() { return finishing::run(); }
