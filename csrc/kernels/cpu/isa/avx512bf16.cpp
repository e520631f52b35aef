#define SYMMOE_ISA_NAMESPACE avx512bf16
#define SYMMOE_ISA_NAME "avx512bf16"
#define SYMMOE_ISA_VECTORS "kernels/cpu/isa/vec_avx512.h"

#include "kernels/cpu/isa/define_table.h"
