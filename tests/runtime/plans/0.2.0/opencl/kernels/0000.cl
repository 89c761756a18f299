#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
__kernel __attribute__((reqd_work_group_size(8, 1, 1))) void matmul_double_plus_a89f7440673400d5(__global float* restrict p0, const int p0_base, __global const float* restrict p1, const int p1_base, __global const float* restrict p2, const int p2_base, __global const float* restrict p3, const int p3_base) {
  p0 += p0_base;
  p1 += p1_base;
  p2 += p2_base;
  p3 += p3_base;
  const int blk = (int)get_group_id(0);
  const int tid = (int)get_local_id(0);
  const int b1 = blk;
  const int s0t0 = ((tid) / 2);
  const int s0t1 = ((tid) % 2);
  float a0[4];
  {
    for (int e = 0; e < 4; ++e) {
      a0[e] = 0.0f;
    }
  }
  {
    for (int s0r0k0 = 0; s0r0k0 < 8; ++s0r0k0) {
      float x1[2];
      for (int s0j0 = 0; s0j0 < 2; ++s0j0) {
        x1[s0j0] = (s0j0 * 4 + s0t0 < 5 ? p1[s0j0 * 32 + s0t0 * 8 + s0r0k0] : 0.0f);
      }
      float x2[2];
      for (int s0j1 = 0; s0j1 < 2; ++s0j1) {
        x2[s0j1] = (b1 * 4 + s0j1 * 2 + s0t1 < 6 ? p2[s0r0k0 * 6 + b1 * 4 + s0j1 * 2 + s0t1] : 0.0f);
      }
      for (int s0j0 = 0; s0j0 < 2; ++s0j0) {
        for (int s0j1 = 0; s0j1 < 2; ++s0j1) {
          a0[s0j0 * 2 + s0j1] += (x1[s0j0] * x2[s0j1]);
        }
      }
    }
  }
  {
    float x3[4];
    for (int s0j0 = 0; s0j0 < 2; ++s0j0) {
      for (int s0j1 = 0; s0j1 < 2; ++s0j1) {
        x3[s0j0 * 2 + s0j1] = (2.0f * a0[s0j0 * 2 + s0j1]);
      }
    }
    float x4[2];
    for (int s0j1 = 0; s0j1 < 2; ++s0j1) {
      x4[s0j1] = (b1 * 4 + s0j1 * 2 + s0t1 < 6 ? p3[b1 * 4 + s0j1 * 2 + s0t1] : 0.0f);
    }
    for (int s0j0 = 0; s0j0 < 2; ++s0j0) {
      for (int s0j1 = 0; s0j1 < 2; ++s0j1) {
        if (s0j0 * 4 + s0t0 < 5 && b1 * 4 + s0j1 * 2 + s0t1 < 6) p0[s0j0 * 24 + s0t0 * 6 + b1 * 4 + s0j1 * 2 + s0t1] = (x3[s0j0 * 2 + s0j1] + x4[s0j1]);
      }
    }
  }
}
