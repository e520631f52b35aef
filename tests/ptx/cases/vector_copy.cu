#ifdef CACHED
#define LOAD(place) __ldg(place)
#else
#define LOAD(place) (*(place))
#endif

// 16 bytes per thread and turn, the rest byte by byte.
extern "C" __global__ void vector_copy(const char* input, char* output, int count) {
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int threads = static_cast<int>(gridDim.x * blockDim.x);
  const int vectors = count / 16;
#ifdef MISALIGNED
  const int shift = 8;
#else
  const int shift = 0;
#endif
#ifdef ONE_TOO_MANY
  const int end = count + 1;
#else
  const int end = count;
#endif
  for (int i = thread; i < vectors; i += threads) {
    const int4* from = reinterpret_cast<const int4*>(input + shift + 16 * i);
    reinterpret_cast<int4*>(output)[i] = LOAD(from);
  }
  for (int i = 16 * vectors + thread; i < end; i += threads) output[i] = input[i];
}
