#include "collectives/exchange.h"

#include <string>

#include "base/error.h"

namespace symmoe {

Exchange::Exchange(Endpoint& endpoint, const char* operation)
    : endpoint_(endpoint), operation_(operation) {
  if (endpoint_.busy.test_and_set(std::memory_order_acquire)) {
    throw InvalidArgument(std::string(operation) + ", rank " +
                          std::to_string(endpoint.channel.rank()) +
                          ": another thread is in a call on " + endpoint_.channel.name() +
                          "; use one lane per thread");
  }
}

Exchange::~Exchange() { endpoint_.busy.clear(std::memory_order_release); }

void Exchange::open() { endpoint_.channel.guard(endpoint_.channel.epoch(), operation_); }

bool Exchange::meet() {
  endpoint_.channel.await_peers(operation_);
  require_same_signature();
  for (int rank = 0; rank < endpoint_.channel.ranks(); ++rank) {
    if (endpoint_.channel.line(rank).ordinal == Posting::kNoWindow) return false;
  }
  return true;
}

void Exchange::require_same_signature() {
  const Channel& channel = endpoint_.channel;
  for (int rank = 1; rank < channel.ranks(); ++rank) {
    const FlagLine& first = channel.line(0);
    const FlagLine& other = channel.line(rank);
    const bool same_call = other.signature == first.signature;
    if (same_call && other.routing == first.routing) continue;
    std::string message = std::string(operation_) + " (" + channel.name() + "), rank " +
                          std::to_string(channel.rank()) + ", epoch " +
                          std::to_string(channel.epoch());
    message += same_call
                   ? ": routing differs: topk_ids and expert_to_rank give other ranks for the "
                     "rows on rank " +
                         std::to_string(rank) + " than on rank 0 (" + first.text + ")"
                   : std::string(": ranks made different calls. Rank 0: ") + first.text +
                         ". Rank " + std::to_string(rank) + ": " + other.text;
    finish();  // every rank sees the same and is as far as this one: the group can go on
    throw Mismatch(message);
  }
}

const std::byte* Exchange::rows_of(int rank, WindowSource& source) {
  const FlagLine& line = endpoint_.channel.line(rank);
  Endpoint::PeerWindow& known = endpoint_.peers[static_cast<size_t>(rank)];
  if (known.ordinal != line.ordinal) {
    known.base =
        endpoint_.channel.naming(operation_, [&] { return source.address(rank, line.ordinal); });
    known.ordinal = line.ordinal;
  }
  return known.base + line.offset;
}

}  // namespace symmoe
