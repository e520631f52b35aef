#pragma once

namespace symmoe::emulator {

// A kernel did what a device would not forgive. Prints "EMULATOR: ..." with the block and thread,
// where one is running, and aborts.
[[noreturn, gnu::format(printf, 1, 2)]] void violation(const char* format, ...);

}  // namespace symmoe::emulator
