#include "kernels/device/emulator/violation.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "kernels/device/emulator/block.h"

namespace symmoe::emulator {

void violation(const char* format, ...) {
  char text[512];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (const Block* block = Block::current(); block != nullptr && block->is_running()) {
    std::fprintf(stderr, "EMULATOR: block %u, thread %u: %s\n", block->index(),
                 block->thread_index(), text);
  } else {
    std::fprintf(stderr, "EMULATOR: %s\n", text);
  }
  std::fflush(stderr);
  std::abort();
}

}  // namespace symmoe::emulator
