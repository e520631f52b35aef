#pragma once

#include "kernels/cpu/isa/kernel_table.h"

namespace symmoe::kernels {

// The table of the instruction set in use; chooses at the first call (see kernels.h: isa_name).
const KernelTable& kernel_table();

}  // namespace symmoe::kernels
