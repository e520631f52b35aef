#define SYMMOE_ISA_NAMESPACE avx2
#define SYMMOE_ISA_NAME "avx2"
#define SYMMOE_ISA_VECTORS "kernels/cpu/isa/vec_avx2.h"

#include "kernels/cpu/isa/define_table.h"
