// The bug: combine tells its peers that its rows are there before all of the block has written.

#define SYMMOE_WITHOUT_SYNC 2
#include "peer_call_without_sync.h"
#include "pulling.h"

int main() { return pulling::run({.calls = 20, .combine = true}); }
