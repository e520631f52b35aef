// The bug: a rank publishes its next call while peers may still look at what it said of the last.

#include "two_ranks.h"

using namespace symmoe;
using namespace symmoe::check;

int main() {
  return run_two_ranks([](Channel& channel, Rows&, const Rows&) {
    for (int call = 0; call < kPlantedCalls; ++call) {
#ifndef SYMMOE_PLANT
      channel.guard(channel.epoch(), "reduce_scatter");
#endif
      dawdle();
      channel.publish({channel.epoch() + 1, 0, 0, ""});
      channel.await_peers("reduce_scatter");
      dawdle();
      consume(channel.line(1 - channel.rank()).ordinal);
      channel.finish();
    }
  });
}
