// The bug: signals between ranks that order nothing else.

#include "kernels/device/dev.h"

#ifdef SYMMOE_PLANT
namespace symmoe::kernels::SYMMOE_PLATFORM::dev {
template <typename Word>
void publish_relaxed(Word* word, std::type_identity_t<Word> value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}
}  // namespace symmoe::kernels::SYMMOE_PLATFORM::dev
#define publish publish_relaxed
#endif

#include "pulling.h"

int main() { return pulling::run({.calls = 10}); }
