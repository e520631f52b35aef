#pragma once

// For sources that launch one small kernel.

#include <cstdint>
#include <vector>

#include "kernels/device/dev.h"
#include "kernels/device/emulator/memory.h"
#include "kernels/device/emulator/options.h"

namespace dev = symmoe::kernels::SYMMOE_PLATFORM::dev;
