// Block 1 waits until block 0 has written, and then takes what it wrote.
extern "C" __global__ void flag(int* data, unsigned* ready, int* output) {
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  if (blockIdx.x == 0) {
    data[thread] = thread + 40;
    __syncthreads();
#ifndef NEVER_SET
    if (thread == 0) asm volatile("st.release.sys.global.u32 [%0], 1;" ::"l"(ready) : "memory");
#endif
  } else {
    if (thread == 0) {
      unsigned seen;
      do {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(ready) : "memory");
      } while (seen == 0);
    }
    __syncthreads();
    output[thread] = data[threads - 1 - thread];
    atomicAdd(&output[threads], 1);
  }
}
