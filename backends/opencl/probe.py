"""Probe of OpenCL platforms that compile kernels incorrectly.

A platform for processors runs the threads of a block one after another, so its compiler splits a kernel at its
barriers. PoCL 5.0 does that incorrectly, by each of its methods, where a result of a condition on the block is stored
after a barrier under a condition on the thread: nothing is stored. One in twenty random kernels with barriers has this
pattern. PoCL 3.0, which the extra `opencl` brings, is correct.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ..device import Array

_BLOCKS, _THREADS, _SIZE = 4, 8, 256
#: Minimal kernel that is compiled incorrectly.
_SOURCE = """
__kernel __attribute__((reqd_work_group_size(8, 1, 1)))
void cuts_probe(__global float* restrict y, __global const float* restrict x) {
  const int block = (int)get_group_id(0);
  const int thread = (int)get_local_id(0);
  const int image = block / 60, place = block % 60;
  const int lane = thread % 2, row = thread / 4, column = thread / 2 % 2;
  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  const float given = x[block % 7 + thread];
  float left[2] = {given, given};
  float right[2] = {given, given};
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      sums[i * 2 + j] += place % 15 % 2 < 1 ? left[i] * right[j] : 0.0f;
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      if (image * 4 + i * 2 + row < 6 && j * 2 + column < 3 && lane < 1)
        y[block * 8 + i * 64 + row * 32 + j * 4 + column] = sums[i * 2 + j];
    }
  }
}
"""


def computes_right(cl: Any, context: Any) -> bool:
    """Return whether a context's device computes the probe correctly."""
    x = np.arange(1, _SIZE + 1, dtype=np.float32)
    found = np.full(_SIZE, -1, np.float32)
    copied = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    y, given = (cl.Buffer(context, copied, hostbuf=array) for array in (found, x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compiler chatter
        program = cl.Program(context, _SOURCE)
        program.get_info(cl.program_info.NUM_DEVICES)  # disables PyOpenCL's own cache of pickles
        program = program.build(["-cl-std=CL1.2", "-cl-mad-enable"])
    kernel = cl.Kernel(program, "cuts_probe")
    kernel.set_args(y, given)
    queue = cl.CommandQueue(context)
    cl.enqueue_nd_range_kernel(queue, kernel, (_BLOCKS * _THREADS,), (_THREADS,))
    cl.enqueue_copy(queue, found, y, is_blocking=True)
    return bool(np.array_equal(found, _expected_result(x)))


def _expected_result(x: Array) -> Array:
    y = np.full(_SIZE, -1, np.float32)
    for block, row, i, j, column in np.ndindex(_BLOCKS, 2, 2, 2, 2):
        if j * 2 + column < 3:  # the other conditions hold for all storing threads
            given = x[block % 7 + row * 4 + column * 2]
            y[block * 8 + i * 64 + row * 32 + j * 4 + column] = given * given if block % 2 < 1 else 0
    return y
