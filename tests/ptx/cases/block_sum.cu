// Each block adds up its part: within warps by shuffles, across warps through shared memory.
extern "C" __global__ void block_sum(const int* input, int* output, int count) {
#ifdef DYNAMIC
  extern __shared__ int warp_sums[];
#else
  __shared__ int warp_sums[32];
#endif
  const int thread = static_cast<int>(threadIdx.x);
#ifdef EARLY_RETURN
  if (thread >= count) return;
#endif
  int sum = 0;
  for (int i = thread; i < count; i += static_cast<int>(blockDim.x)) {
    sum += input[static_cast<int>(blockIdx.x) * count + i];
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    sum += __shfl_down_sync(0xffffffffu, sum, offset);
  }
  if (thread % 32 == 0) warp_sums[thread / 32] = sum;
#if defined(DIVERGENT_BARRIER)
  if (thread % 2 == 0) {
    __syncthreads();
    atomicAdd(&output[blockIdx.x], 0);  // keeps the two barriers from being merged
  } else {
    __syncthreads();
  }
#elif !defined(MISSING_BARRIER)
  __syncthreads();
#endif
  if (thread == 0) {
    int total = 0;
    for (int warp = 0; warp < static_cast<int>(blockDim.x) / 32; ++warp) total += warp_sums[warp];
    output[blockIdx.x] = total;
  }
}
