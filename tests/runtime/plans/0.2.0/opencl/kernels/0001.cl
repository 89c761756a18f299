#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
static inline float cuts_max_f32(float a, float b) { return a < b || b != b ? b : a; }
static inline float cuts_quotient_f32(float a, float b) { const float s = fabs(b) > 1.2676506002282294e+30f ? 8.673617379884035e-19f : fabs(b) < 7.888609052210118e-31f ? 1.152921504606847e+18f : 1, d = b * s, r = 1 / d, n = a * s, q = n * r; const float c = fma(fma(-q, d, n), r, q); return fabs(c) > 0 ? c : q; }
static inline float cuts_inf(void) { return INFINITY; }
__kernel __attribute__((reqd_work_group_size(4, 1, 1))) void softmax_5464dffeeb0d1493(__global float* restrict p0, const int p0_base, __global const float* restrict p1, const int p1_base) {
  p0 += p0_base;
  p1 += p1_base;
  const int blk = (int)get_group_id(0);
  const int tid = (int)get_local_id(0);
  const int b0 = blk;
  const int s0t0 = tid;
  float a0[1];
  float a1[1];
  float a2[1];
  float a3[1];
  float a4[1];
  {
    for (int e = 0; e < 1; ++e) {
      a0[e] = (-cuts_inf());
    }
    for (int e = 0; e < 1; ++e) {
      a1[e] = 0.0f;
    }
  }
  {
    for (int e = 0; e < 1; ++e) {
      a2[e] = 0.0f;
    }
    a2[0] += a0[0];
    float x1[8];
    for (int s0r0k0i = 0; s0r0k0i < 8; ++s0r0k0i) {
      x1[s0r0k0i] = (b0 * 4 + s0t0 < 5 && s0r0k0i < 6 ? p1[b0 * 24 + s0t0 * 6 + s0r0k0i] : 0.0f);
      a0[0] = cuts_max_f32(a0[0], ((s0r0k0i < 6) ? x1[s0r0k0i] : (-cuts_inf())));
    }
    for (int e = 0; e < 1; ++e) {
      a3[e] = 0.0f;
    }
    a3[0] += ((a0[0] == (-cuts_inf())) ? 0.0f : a0[0]);
    for (int e = 0; e < 1; ++e) {
      a4[e] = 0.0f;
    }
    a4[0] += exp((a2[0] - a3[0]));
    a1[0] = (a1[0] * a4[0]);
    for (int s0r0k0i = 0; s0r0k0i < 8; ++s0r0k0i) {
      a1[0] += ((s0r0k0i < 6) ? exp((x1[s0r0k0i] - a3[0])) : 0.0f);
    }
  }
  {
    for (int e = 0; e < 1; ++e) {
      a2[e] = 0.0f;
    }
    a2[0] += a0[0];
  }
  {
    a1[0] = (a1[0] * exp((a2[0] - a0[0])));
  }
  {
    for (int s0wi = 0; s0wi < 8; ++s0wi) {
      const float x2 = (b0 * 4 + s0t0 < 5 && s0wi < 6 ? p1[b0 * 24 + s0t0 * 6 + s0wi] : 0.0f);
      if (b0 * 4 + s0t0 < 5 && s0wi < 6) p0[b0 * 24 + s0t0 * 6 + s0wi] = cuts_quotient_f32(exp((x2 - a0[0])), a1[0]);
    }
  }
}
