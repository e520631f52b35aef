// The bug: the top-k kernel writes the next token's slots while threads still read the last one's.

#define SYMMOE_WITHOUT_BARRIER 0
#include "topk_without_barrier.h"

int main() { return run_topk(); }
