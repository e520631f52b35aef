// The bug: squares are added up in another order, by 32 threads instead of 64.

#include "kernels/device/launch.h"

#ifdef SYMMOE_PLANT
#define kSquareLanes 32
#endif

#include "finishing.h"

int main() { return finishing::run(); }
