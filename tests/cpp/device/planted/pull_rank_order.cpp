// The bug: ranks are added from the last to the first.

#include "kernels/device/dev.h"

#ifdef SYMMOE_PLANT
namespace symmoe::kernels::SYMMOE_PLATFORM::dev {
inline int bit_from_behind(uint64_t bits) { return 2 - lowest_bit(bits); }
}  // namespace symmoe::kernels::SYMMOE_PLATFORM::dev
#define lowest_bit bit_from_behind
#endif

#include "pulling.h"

int main() { return pulling::run({.world = 3, .calls = 3}); }
