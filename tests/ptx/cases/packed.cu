// Two floats to two bfloat16, and a predicate that only the assembly knows.
extern "C" __global__ void packed(const float* input, unsigned* output, unsigned* positive) {
  const int i = static_cast<int>(threadIdx.x);
  unsigned pair;
#ifdef SWAPPED
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(input[2 * i]), "f"(input[2 * i + 1]));
#else
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(input[2 * i]), "f"(input[2 * i + 1]));
#endif
  output[i] = pair;
  unsigned flags = 0;
  for (int k = 0; k < 2; ++k) {
    unsigned flag;
    asm("{\n"
        "  .reg .pred p;\n"
        "  setp.gt.f32 p, %1, 0f00000000;\n"
        "  selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(flag)
        : "f"(input[2 * i + k]));
    flags |= flag << k;
  }
  positive[i] = flags;
}
