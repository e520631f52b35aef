// The bug: partial sums of squares are folded before all threads have theirs.

#define SYMMOE_WITHOUT_SYNC 1
#include "epilogue_row_without_sync.h"
#include "finishing.h"

int main() { return finishing::run(); }
