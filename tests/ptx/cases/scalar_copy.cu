// What a vector kernel becomes when the compiler cannot prove alignment.
extern "C" __global__ void scalar_copy(const unsigned short* input, unsigned short* output) {
  for (int i = 0; i < 8; ++i) {
    const unsigned at = threadIdx.x * 8 + static_cast<unsigned>(i);
    output[at] = static_cast<unsigned short>(input[at] + 1);
  }
}
