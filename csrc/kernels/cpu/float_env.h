#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace symmoe::kernels {

// Round to nearest even, keep subnormals, no traps, for as long as it lives; then the caller's mode
// again. Frameworks set flush-to-zero per thread, and results must not depend on that.
class FloatEnv {
 public:
  FloatEnv() : saved_(read()) {
    if ((saved_ & kControl) != kDefault) write(kDefault);
  }
  ~FloatEnv() {
    if ((saved_ & kControl) != kDefault) write(saved_);
  }
  FloatEnv(const FloatEnv&) = delete;
  FloatEnv& operator=(const FloatEnv&) = delete;

 private:
#if defined(__SSE__)
  using Word = uint32_t;
  static constexpr Word kControl = 0xffc0;  // MXCSR without the sticky exception flags
  static constexpr Word kDefault = 0x1f80;  // every exception masked
  static Word read() { return _mm_getcsr(); }
  static void write(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kControl = ~Word{0};
  static constexpr Word kDefault = 0;
  static Word read() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word)::"memory");
    return word;
  }
  static void write(Word word) { asm volatile("msr fpcr, %0" ::"r"(word) : "memory"); }
#else
  using Word = uint32_t;
  static constexpr Word kControl = 0;
  static constexpr Word kDefault = 0;
  static Word read() { return 0; }
  static void write(Word) {}
#endif

  Word saved_;
};

}  // namespace symmoe::kernels
