// The bug: pull_reduce ends before its peers have read this rank's rows.

#include "kernels/device/peer_call.h"

#ifdef SYMMOE_PLANT
namespace symmoe::kernels::SYMMOE_PLATFORM {
inline void end_alone(const PeerCall& call) {
  if (dev::thread() == 0) dev::store(&call.page->epoch[dev::block()], call.epoch);
}
}  // namespace symmoe::kernels::SYMMOE_PLATFORM
#define meet_at_exit(problem, call) end_alone(call)
#endif

#include "pulling.h"

int main() { return pulling::run({.calls = 200}); }
