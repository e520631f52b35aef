// The bug: a row's largest number is taken before all threads have told of theirs.

#define SYMMOE_WITHOUT_SYNC 3
#include "epilogue_row_without_sync.h"
#include "finishing.h"

int main() { return finishing::run(); }
