// The bug: every call has the same epoch, so that the signals of the last one are taken for those
// of this one.

#include "kernels/device/peer_call.h"

#ifdef SYMMOE_PLANT
namespace symmoe::kernels::SYMMOE_PLATFORM {
inline void meet_and_forget(const PullLaunch& problem, const PeerCall& call) {
  meet_at_exit(problem, call);
  if (dev::thread() == 0) dev::store(&call.page->epoch[dev::block()], call.epoch - 1);
}
}  // namespace symmoe::kernels::SYMMOE_PLATFORM
#define meet_at_exit meet_and_forget
#endif

#include "pulling.h"

int main() { return pulling::run({.calls = 5, .pause_ms = 20}); }
