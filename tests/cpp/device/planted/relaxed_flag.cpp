// The bug: flags between ranks that order nothing else.

#ifdef SYMMOE_PLANT
#define SYMMOE_PLANT_RELAXED
#endif

#include "peer_exchange.h"

int main() { return peers::run(10); }
