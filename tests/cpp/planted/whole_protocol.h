#pragma once

// Every step in its place, for sources that weaken the protocol's own code.

#include "two_ranks.h"

namespace symmoe::check {

inline int run_whole_protocol() {
  return run_two_ranks([](Channel& channel, Rows& own, const Rows& peers) {
    for (int call = 0; call < kPlantedCalls; ++call) {
      channel.guard(channel.epoch(), "acquire");
      own.write(channel.rank(), channel.epoch() + 1);
      dawdle();
      channel.publish({});
      channel.await_peers("reduce_scatter");
      dawdle();
      consume(peers.difference(1 - channel.rank(), channel.epoch()));
      channel.finish();
    }
  });
}

}  // namespace symmoe::check
