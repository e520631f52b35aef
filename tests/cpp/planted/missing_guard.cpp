// The bug: a writer that does not wait until its peers have read what it wrote last.

#include "two_ranks.h"

using namespace symmoe;
using namespace symmoe::check;

int main() {
  return run_two_ranks([](Channel& channel, Rows& own, const Rows& peers) {
    for (int call = 0; call < kPlantedCalls; ++call) {
#ifndef SYMMOE_PLANT
      channel.guard(channel.epoch(), "acquire");
#endif
      own.write(channel.rank(), channel.epoch() + 1);
      channel.guard(channel.epoch(), "publish");  // the flag line itself is not part of this bug
      dawdle();
      channel.publish({});
      channel.await_peers("reduce_scatter");
      dawdle();
      consume(peers.difference(1 - channel.rank(), channel.epoch()));
      channel.finish();
    }
  });
}
