// The bug: squares are added up before all of the row has been put into the block's memory.

#define SYMMOE_WITHOUT_SYNC 4
#include "epilogue_row_without_sync.h"
#include "finishing.h"

int main() { return finishing::run(); }
