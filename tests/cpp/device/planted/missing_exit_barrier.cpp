// The bug: a rank goes on to write its rows of the next epoch while a peer still reads the last.

#ifdef SYMMOE_PLANT
#define SYMMOE_PLANT_NO_EXIT
#endif

#include "peer_exchange.h"

int main() { return peers::run(50); }
