// The bug: the top-k kernel's threads read the table of slots before it is written.

#define SYMMOE_WITHOUT_BARRIER 1
#include "topk_without_barrier.h"

int main() { return run_topk(); }
