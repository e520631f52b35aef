// A copy that leaves the destination out of the caches.
#pragma once

#include "kernels/cpu/isa/blocks.h"

namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE {
namespace {

void stream_copy(void* destination, const void* source, size_t bytes) {
  char* to = static_cast<char*>(destination);
  const char* from = static_cast<const char*>(source);
  constexpr size_t kStep = kBlock * sizeof(float);
  const size_t head = -reinterpret_cast<uintptr_t>(to) & (kStreamAlignment - 1);
  if (bytes < head + kStep) {
    __builtin_memcpy(to, from, bytes);
    return;
  }
  __builtin_memcpy(to, from, head);
  size_t done = head;
  for (; done + 4 * kStep <= bytes; done += 4 * kStep) {
    Pair data[4];
#pragma GCC unroll 4
    for (size_t b = 0; b < 4; ++b) data[b] = load_float32(from + done + b * kStep);
#pragma GCC unroll 4
    for (size_t b = 0; b < 4; ++b) store_float32<true>(to + done + b * kStep, data[b]);
  }
  for (; done + kStep <= bytes; done += kStep) {
    store_float32<true>(to + done, load_float32(from + done));
  }
  __builtin_memcpy(to + done, from + done, bytes - done);
  finish_stream();
}

}  // namespace
}  // namespace symmoe::kernels::SYMMOE_ISA_NAMESPACE
