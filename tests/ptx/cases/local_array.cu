#ifdef SPILL
// Far more live values than the launch bound leaves registers for.
extern "C" __global__ void __launch_bounds__(1024, 2)
    local_array(const float4* input, float4* output) {
  constexpr int kLive = 24;
  float4 live[kLive];
#pragma unroll
  for (int i = 0; i < kLive; ++i) live[i] = input[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kLive; ++i) output[(kLive - 1 - i) * 1024 + threadIdx.x] = live[i];
}
#else
// An index that only the data knows keeps the array out of registers.
extern "C" __global__ void local_array(const int* input, int* output, int count) {
  int table[8];
  for (int i = 0; i < 8; ++i) table[i] = input[i] * 3;
  for (int i = 0; i < count; ++i) table[input[8 + i] & 7] += i;
  output[threadIdx.x] = table[threadIdx.x & 7];
}
#endif
