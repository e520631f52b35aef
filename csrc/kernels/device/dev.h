#pragma once

// The only device file that knows CUDA (nvcc), HIP (clang) and the emulator (any C++ compiler)
// apart: the few things that kernels here do, each under one name. Kernels stand in the namespace
// symmoe::kernels::SYMMOE_PLATFORM, so that those of different back ends never share a symbol.

#include <cstdint>
#include <type_traits>

#if defined(__HIP__)
#include <hip/hip_runtime.h>
#define SYMMOE_PLATFORM hip
#define SYMMOE_DEVICE __device__ __forceinline__
#elif defined(__CUDACC__)
#include <cuda_runtime.h>
#define SYMMOE_PLATFORM cuda
#define SYMMOE_DEVICE __device__ __forceinline__
#else
#include "kernels/device/emulator/language.h"
#define SYMMOE_PLATFORM emulated
#define SYMMOE_DEVICE inline
#endif

// For loops whose arrays must end up in registers; or, by 1, for long ones that gain nothing from
// it. The emulator has no use for that.
#if defined(__HIP__) || defined(__CUDACC__)
#define SYMMOE_PRAGMA(text) _Pragma(#text)
#define SYMMOE_UNROLL SYMMOE_PRAGMA(unroll)
#define SYMMOE_UNROLL_BY(count) SYMMOE_PRAGMA(unroll count)
#else
#define SYMMOE_UNROLL
#define SYMMOE_UNROLL_BY(count) static_cast<void>(count);
#endif

// Declares `Type& name`, one object for all threads of the block, uninitialised.
#if defined(__HIP__) || defined(__CUDACC__)
#define SYMMOE_SHARED(Type, name)      \
  __shared__ Type name##_shared_value; \
  Type& name = name##_shared_value
#else
#define SYMMOE_SHARED(Type, name)    \
  static const char name##_site = 0; \
  Type& name = ::symmoe::emulator::shared_variable<Type>(&name##_site)
#endif

namespace symmoe::kernels::SYMMOE_PLATFORM::dev {

// Bytes that the blocks of a multiprocessor have in common for their __shared__ variables, on the
// smallest device.
#if defined(__HIP__)
constexpr int kSharedBytes = 64 << 10;
#else
constexpr int kSharedBytes = 160 << 10;
#endif

// What a thread loads or stores at once, at best.
struct alignas(16) Bits128 {
  uint32_t word[4];
};

// ---- where a thread stands -----------------------------------------------------------------

#if defined(__HIP__) || defined(__CUDACC__)
SYMMOE_DEVICE unsigned thread() { return threadIdx.x; }
SYMMOE_DEVICE unsigned threads() { return blockDim.x; }
SYMMOE_DEVICE unsigned block() { return blockIdx.x; }
SYMMOE_DEVICE unsigned blocks() { return gridDim.x; }
SYMMOE_DEVICE void sync_block() { __syncthreads(); }
// A barrier that tells every thread whether all of the block came with `true`.
SYMMOE_DEVICE bool sync_block_and(bool mine) { return __syncthreads_and(mine ? 1 : 0) != 0; }
#else
using emulator::block;
using emulator::blocks;
using emulator::sync_block;
using emulator::sync_block_and;
using emulator::thread;
using emulator::threads;
#endif

// ---- global memory -------------------------------------------------------------------------
// Every address is a multiple of the size.

#if defined(__HIP__) || defined(__CUDACC__)
// Says that an address which the kernel has read somewhere is one of global memory: the compiler
// knows it of the kernel's own arguments only.
SYMMOE_DEVICE void assume_global([[maybe_unused]] const void* address) {
#if defined(__CUDACC__)
  __builtin_assume(__isGlobal(address));
#endif
}
template <typename T>
SYMMOE_DEVICE T load(const void* from) {
  assume_global(from);
  return *static_cast<const T*>(from);
}
template <typename T>
SYMMOE_DEVICE void store(void* to, T value) {
  assume_global(to);
  *static_cast<T*>(to) = value;
}
// Only of memory that nobody, no peer either, writes while the kernel runs: these loads may be
// served from a cache that nobody else's stores reach.
template <typename T>
SYMMOE_DEVICE T load_read_only(const void* from) {
#if defined(__HIP__)
  return load<T>(from);
#else
  return __ldg(static_cast<const T*>(from));
#endif
}
#else
template <typename T>
T load(const void* from) {
  return emulator::load<T>(from, emulator::Access::kLoad);
}
template <typename T>
T load_read_only(const void* from) {
  return emulator::load<T>(from, emulator::Access::kReadOnlyLoad);
}
template <typename T>
void store(void* to, T value) {
  emulator::store(to, value);
}
#endif

#if defined(__CUDACC__)
SYMMOE_DEVICE Bits128 load16(const void* from) {
  assume_global(from);
  const uint4 bits = *static_cast<const uint4*>(from);
  return {{bits.x, bits.y, bits.z, bits.w}};
}
SYMMOE_DEVICE void store16(void* to, const Bits128& bits) {
  assume_global(to);
  *static_cast<uint4*>(to) = make_uint4(bits.word[0], bits.word[1], bits.word[2], bits.word[3]);
}
// Not volatile, so that the compiler may move it ahead of other work.
SYMMOE_DEVICE Bits128 load16_read_only(const void* from) {
  Bits128 bits;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(bits.word[0]), "=r"(bits.word[1]), "=r"(bits.word[2]), "=r"(bits.word[3])
      : "l"(__cvta_generic_to_global(from)));
  return bits;
}
#else
SYMMOE_DEVICE Bits128 load16(const void* from) { return load<Bits128>(from); }
SYMMOE_DEVICE Bits128 load16_read_only(const void* from) { return load_read_only<Bits128>(from); }
SYMMOE_DEVICE void store16(void* to, const Bits128& bits) { store<Bits128>(to, bits); }
#endif

// ---- arithmetic ----------------------------------------------------------------------------
// Each rounds once, keeps subnormals and is never merged with another one.

#if defined(__CUDACC__)
SYMMOE_DEVICE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
SYMMOE_DEVICE float mul(float a, float b) { return __fmul_rn(a, b); }
SYMMOE_DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
SYMMOE_DEVICE float div(float a, float b) { return __fdiv_rn(a, b); }
SYMMOE_DEVICE float sqrt(float a) { return __fsqrt_rn(a); }
#else  // built with -ffp-contract=off
SYMMOE_DEVICE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SYMMOE_DEVICE float mul(float a, float b) { return a * b; }
SYMMOE_DEVICE float add(float a, float b) { return a + b; }
SYMMOE_DEVICE float div(float a, float b) { return a / b; }
SYMMOE_DEVICE float sqrt(float a) { return __builtin_sqrtf(a); }
#endif

template <typename To, typename From>
SYMMOE_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// ---- conversions ---------------------------------------------------------------------------
// Round to nearest, half to even. A NaN becomes 0x7fff in bfloat16. Packed: `low` in the lower
// half.

#if defined(__CUDACC__)
SYMMOE_DEVICE float float_of_float16(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}
SYMMOE_DEVICE uint32_t pack_bfloat16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
SYMMOE_DEVICE uint32_t pack_float16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
#elif defined(__HIP__)
SYMMOE_DEVICE float float_of_float16(uint16_t half) {
  return static_cast<float>(bits_as<_Float16>(half));
}
SYMMOE_DEVICE uint32_t bfloat16_of_float(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  return value != value ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
SYMMOE_DEVICE uint32_t pack_bfloat16(float low, float high) {
  return bfloat16_of_float(low) | bfloat16_of_float(high) << 16;
}
SYMMOE_DEVICE uint32_t pack_float16(float low, float high) {
  return uint32_t{bits_as<uint16_t>(static_cast<_Float16>(low))} |
         uint32_t{bits_as<uint16_t>(static_cast<_Float16>(high))} << 16;
}
#else
using emulator::float_of_float16;
inline uint32_t pack_bfloat16(float low, float high) {
  return emulator::bfloat16_of_float(low) | uint32_t{emulator::bfloat16_of_float(high)} << 16;
}
inline uint32_t pack_float16(float low, float high) {
  return emulator::float16_of_float(low) | uint32_t{emulator::float16_of_float(high)} << 16;
}
#endif

// The number of the lowest bit that is set; of a number other than 0.
#if defined(__CUDACC__)
SYMMOE_DEVICE int lowest_bit(uint64_t bits) { return __ffsll(static_cast<long long>(bits)) - 1; }
#else
SYMMOE_DEVICE int lowest_bit(uint64_t bits) { return __builtin_ctzll(bits); }
#endif

// ---- words that the host or other devices use while kernels run -------------------------------
// claim: true for the one thread of the system that changes the word from 0 to 1.
// peek: what was stored before the value that it finds was published is there for later loads of
// this thread, and of others behind a barrier of the block.
// publish: after all that this thread did before, and others before a barrier of the block.

#if defined(__CUDACC__)
SYMMOE_DEVICE bool claim(uint32_t* word) { return atomicCAS_system(word, 0u, 1u) == 0u; }
SYMMOE_DEVICE uint32_t peek(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(word))
               : "memory");
  return value;
}
SYMMOE_DEVICE uint64_t peek(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
               : "=l"(value)
               : "l"(__cvta_generic_to_global(word))
               : "memory");
  return value;
}
SYMMOE_DEVICE void publish(uint32_t* word, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;"
               :
               : "l"(__cvta_generic_to_global(word)), "r"(value)
               : "memory");
}
SYMMOE_DEVICE void publish(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;"
               :
               : "l"(__cvta_generic_to_global(word)), "l"(value)
               : "memory");
}
#elif defined(__HIP__)
SYMMOE_DEVICE bool claim(uint32_t* word) {
  uint32_t expected = 0;
  return __hip_atomic_compare_exchange_strong(word, &expected, 1u, __ATOMIC_ACQUIRE,
                                              __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
template <typename Word>
SYMMOE_DEVICE Word peek(const Word* word) {
  return __hip_atomic_load(word, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}
template <typename Word>
SYMMOE_DEVICE void publish(Word* word, std::type_identity_t<Word> value) {
  __hip_atomic_store(word, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}
#else
inline bool claim(uint32_t* word) {
  uint32_t expected = 0;
  return __atomic_compare_exchange_n(word, &expected, 1u, false, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED);
}
template <typename Word>
Word peek(const Word* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
template <typename Word>
void publish(Word* word, std::type_identity_t<Word> value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
#endif

// ---- words that blocks of one kernel share ---------------------------------------------------
// Each returns what the word held before.

#if defined(__CUDACC__)
SYMMOE_DEVICE uint64_t add_to(uint64_t* word, uint64_t value) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(word), value);
}
// In order with what this thread did before and does later.
SYMMOE_DEVICE uint32_t count_in_order(uint32_t* word) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(word))
               : "memory");
  return before;
}
#elif defined(__HIP__)
SYMMOE_DEVICE uint64_t add_to(uint64_t* word, uint64_t value) {
  return __hip_atomic_fetch_add(word, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
SYMMOE_DEVICE uint32_t count_in_order(uint32_t* word) {
  return __hip_atomic_fetch_add(word, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
}
#else
inline uint64_t add_to(uint64_t* word, uint64_t value) {
  return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}
inline uint32_t count_in_order(uint32_t* word) {
  return __atomic_fetch_add(word, 1u, __ATOMIC_ACQ_REL);
}
#endif

// ---- waiting -----------------------------------------------------------------------------------

#if defined(__CUDACC__)
// Of a clock that never goes back; in steps of a microsecond at worst.
SYMMOE_DEVICE uint64_t clock_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
// Between two looks at a word.
SYMMOE_DEVICE void pause() {
  constexpr unsigned kNanoseconds = 20;  // far less than a signal takes to come
  __nanosleep(kNanoseconds);
}
#elif defined(__HIP__)
SYMMOE_DEVICE uint64_t clock_ns() {
  constexpr uint64_t kNanosecondsPerTick = 10;  // the constant clock of 100 MHz
  return wall_clock64() * kNanosecondsPerTick;
}
SYMMOE_DEVICE void pause() { __builtin_amdgcn_s_sleep(1); }
#else
using emulator::clock_ns;
using emulator::pause;
#endif

// ---- launching (host code) ------------------------------------------------------------------

// Returns the runtime's error code, 0 if there was none. That of the launch itself: behind <<<>>>
// one would have to ask for the thread's last error, which may be one that another library left.
#if defined(__HIP__) || defined(__CUDACC__)
#if defined(__HIP__)
inline int launch_kernel(const void* kernel, dim3 blocks, dim3 threads, void** arguments,
                         void* stream) {
  return static_cast<int>(
      hipLaunchKernel(kernel, blocks, threads, arguments, 0, static_cast<hipStream_t>(stream)));
}
#else
inline int launch_kernel(const void* kernel, dim3 blocks, dim3 threads, void** arguments,
                         void* stream) {
  return static_cast<int>(
      cudaLaunchKernel(kernel, blocks, threads, arguments, 0, static_cast<cudaStream_t>(stream)));
}
#endif
template <typename... Parameters>
int launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, void* stream,
           std::type_identity_t<Parameters>... arguments) {
  void* addresses[] = {&arguments...};
  return launch_kernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(threads),
                       addresses, stream);
}
#else
using emulator::launch;
#endif

}  // namespace symmoe::kernels::SYMMOE_PLATFORM::dev
