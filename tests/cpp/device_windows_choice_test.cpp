// Whose windows a group of devices tries, and in which order.
#include <vector>

#include "check.h"
#include "collectives/device/device_windows.h"

using namespace symmoe;
using namespace symmoe::check;

namespace {

NcclCapabilities nccl(bool windows, bool direct, bool peer_pointers) {
  NcclCapabilities found;
  found.windows = windows;
  found.direct = direct;
  found.peer_pointers = peer_pointers;
  return found;
}

const NcclCapabilities kNew = nccl(true, true, true);
const NcclCapabilities kUnsafe = nccl(true, false, true);
const NcclCapabilities kOld = nccl(true, false, false);
const NcclCapabilities kAncient = nccl(false, false, false);

using Makers = std::vector<WindowMaker>;

Makers tried(const NcclCapabilities& found, bool own_kernels = true,
             WindowMaker maker = WindowMaker::kAny, const char* no_communicator = "") {
  return makers_to_try({maker, found, no_communicator, own_kernels});
}

constexpr WindowMaker kNccl = WindowMaker::kNccl;
constexpr WindowMaker kVmm = WindowMaker::kVmm;

}  // namespace

TEST(nccl_where_it_serves_both) { CHECK(tried(kNew) == Makers({kNccl, kVmm})); }

// NCCL would read windows that it knows by kernels that it must not use.
TEST(nccl_last_where_it_must_not_read_windows) {
  CHECK(tried(kUnsafe) == Makers({kVmm, kNccl}));
  CHECK(tried(kOld) == Makers({kVmm}));
  CHECK(tried(kAncient) == Makers({kVmm}));
  CHECK(tried(kNew, true, WindowMaker::kAny, "no NCCL") == Makers({kVmm}));
}

TEST(without_own_kernels_only_what_nccl_reads) {
  CHECK(tried(kNew, false) == Makers({kNccl}));
  CHECK(tried(kUnsafe, false).empty());
  CHECK(tried(kOld, false).empty());
}

TEST(one_maker_may_be_asked_for) {
  CHECK(tried(kNew, true, kVmm) == Makers({kVmm}));
  CHECK(tried(kNew, true, kNccl) == Makers({kNccl}));
  CHECK(tried(kUnsafe, true, kNccl) == Makers({kNccl}));
  CHECK(tried(kOld, true, kNccl).empty());
}

int main(int argc, char** argv) { return run_all(argc, argv); }
