// The bug: pull_reduce tells its peers that it has read before all of the block has.

#define SYMMOE_WITHOUT_SYNC 3
#include "peer_call_without_sync.h"
#include "pulling.h"

int main() { return pulling::run({.calls = 20}); }
