static __device__ __forceinline__ float cuts_max_f32(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r;
#else
  return a < b || b != b ? b : a;
#endif
}
static __device__ __forceinline__ float cuts_inf() { return __int_as_float(0x7f800000); }
static __device__ __forceinline__ void cuts_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
extern "C" __global__ void __launch_bounds__(32) double_plus_softmax_b46c2ee22f78c07f_waits(float* __restrict__ p0, const float* __restrict__ p1, const float* __restrict__ p2) {
  cuts_begin();
  const int blk = (int)blockIdx.x;
  const int tid = (int)threadIdx.x;
  const int b0 = blk;
  const int s0l = ((tid) % 8);
  const int s0t0 = ((tid) / 8);
  float a0[1];
  float a1[1];
  {
    #pragma unroll
    for (int e = 0; e < 1; ++e) {
      a0[e] = (-cuts_inf());
    }
    float x1;
    const float x2 = (b0 * 4 + s0t0 < 5 && s0l < 6 ? p1[b0 * 24 + s0t0 * 6 + s0l] : 0.0f);
    const float x3 = (s0l < 6 ? p2[s0l] : 0.0f);
    x1 = ((2.0f * x2) + x3);
    a0[0] = cuts_max_f32(a0[0], ((s0l < 6) ? x1 : (-cuts_inf())));
    #pragma unroll
    for (int e = 0; e < 1; ++e) {
      const float x4 = __shfl_xor_sync(0xffffffffu, a0[e], 4);
      a0[e] = cuts_max_f32(a0[e], x4);
      const float x5 = __shfl_xor_sync(0xffffffffu, a0[e], 2);
      a0[e] = cuts_max_f32(a0[e], x5);
      const float x6 = __shfl_xor_sync(0xffffffffu, a0[e], 1);
      a0[e] = cuts_max_f32(a0[e], x6);
    }
    #pragma unroll
    for (int e = 0; e < 1; ++e) {
      a1[e] = 0.0f;
    }
    float x7;
    x7 = expf((x1 - a0[0]));
    a1[0] += ((s0l < 6) ? x7 : 0.0f);
    #pragma unroll
    for (int e = 0; e < 1; ++e) {
      const float x8 = __shfl_xor_sync(0xffffffffu, a1[e], 4);
      a1[e] = (a1[e] + x8);
      const float x9 = __shfl_xor_sync(0xffffffffu, a1[e], 2);
      a1[e] = (a1[e] + x9);
      const float x10 = __shfl_xor_sync(0xffffffffu, a1[e], 1);
      a1[e] = (a1[e] + x10);
    }
    if (b0 * 4 + s0t0 < 5 && s0l < 6) p0[b0 * 24 + s0t0 * 6 + s0l] = (x7 / a1[0]);
  }
}
