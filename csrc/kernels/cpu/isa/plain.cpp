#define SYMMOE_ISA_NAMESPACE plain
#define SYMMOE_ISA_NAME "plain"
#define SYMMOE_ISA_VECTORS "kernels/cpu/isa/vec_plain.h"

#include "kernels/cpu/isa/define_table.h"
