// The bug: a rank reads its peers' rows without waiting for them.

#include "two_ranks.h"

using namespace symmoe;
using namespace symmoe::check;

int main() {
  return run_two_ranks([](Channel& channel, Rows& own, const Rows& peers) {
    for (int call = 0; call < kPlantedCalls; ++call) {
      channel.guard(channel.epoch(), "acquire");
      own.write(channel.rank(), channel.epoch() + 1);
      dawdle();
      channel.publish({});
#ifndef SYMMOE_PLANT
      channel.await_peers("reduce_scatter");
#endif
      dawdle();
      consume(peers.difference(1 - channel.rank(), channel.epoch()));
      channel.finish();
    }
  });
}
