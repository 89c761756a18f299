"""Ten whole kernels in both dialects: printed text is reviewed like code.

Groups and schedules are fixed here, so that only lowering, extraction and printing can change a golden file.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cuts.backends.devices import find_target
from cuts.ir.graph import Graph
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.text import parse_ir, print_ir
from cuts.ir.types import DType, TensorType
from cuts.passes.fusion.grouping.groups import Group
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.tests.emission import emit
from cuts.tests.fusion.build import fuse_units, graph, op

TARGETS = {"cuda": "cuda:h200", "opencl": "opencl"}


def half(*shape: int) -> TensorType:
    """Return a tensor of bfloat16."""
    return TensorType(DType.BF16, shape)


CONVOLUTION = {"x": (1, 4, 8, 8), "w": (4, 4, 3, 3)}

#: A graph, the units that its kernel computes, and the schedule.
KERNELS: dict[str, tuple[Graph, str, str]] = {
    "gemm": (
        graph({"a": (70, 40), "b": (40, 52), "c": (52,)}, op("ab", "matmul", "a", "b"), op("d", "add", "ab", "c"),
              op("y", "relu", "d"),
              out="y"),
        "n0 n1 n2",
        """schedule raster 2 min_blocks 2 {
          spread {
            tile (i0) block 16 thread 2
            tile (i1) block 32 thread 4 vector 4
            k_loop stages 2 { block_k (r0) by 8  stage 0  stage 1 }
          }
        }""",
    ),
    "convolution": (
        graph(CONVOLUTION, op("c", "conv", "x", "w", pads=(1, 1, 1, 1)), op("y", "relu", "c"), out="y"),
        "n0 n1",
        """schedule {
          spread {
            tile (i0) block 4 thread 2
            tile (i1, i2) block 32 thread 2 vector 2
            k_loop { block_k (r0, r1, r2) by 12  stage 0  stage 1 pad 1 }
          }
        }""",
    ),
    "softmax": (
        graph({"x": (10, 100)}, op("y", "softmax", "x"), out="y"),
        "n0",
        """schedule {
          spread reduction_threads 64 {
            tile (i0) block 2 thread 1
            k_loop { block_k (r0) by 128 }
            k_loop { block_k (r0) by 128 }
          }
        }""",
    ),
    "layer_norm": (
        graph({"x": (10, 96), "s": (96,), "b": (96,)}, op("y", "layer_norm", "x", "s", "b"), out="y"),
        "n0",
        """schedule {
          spread reduction_threads 32 row_vector 4 {
            tile (i0) block 2 thread 1
            k_loop { block_k (r0) by 128 }
            k_loop { block_k (r0) by 128 }
          }
        }""",
    ),
    "recurrence": (
        graph({"x": (2, 3, 8), "w": (1, 16, 8), "r": (1, 16, 16)}, op("y h", "rnn", "x", "w", "r"), out="y"),
        "n0/7",
        """schedule {
          spread reduction_threads 8 {
            tile (i0) block 1 thread 1
            tile (i1) block 8 thread 1
            k_loop { block_k (r0) by 16 }
          }
        }""",
    ),
    "shared_fusion": (
        graph({**CONVOLUTION, "p": (6, 4, 1, 1)}, op("c", "conv", "x", "w", pads=(1, 1, 1, 1)), op("r", "relu", "c"),
              op("y", "conv", "r", "p"), out="y"),
        "n0 n1 n2",
        """schedule {
          spread {
            tile (i0) block 1 thread 1
            tile (i1) block 4 thread 1
            tile (i2) block 2 thread 1
            tile (i3) block 4 thread 2
            k_loop { block_k (r0) by 4  block_k (r1) by 3  block_k (r2) by 3  stage 0 }
          }
          spread {
            tile (i0'6) block 6 thread 2
            tile (i1'8) block 2 thread 1
            tile (i2) block 4 thread 2
            k_loop { block_k (r0) by 4 }
          }
        }""",
    ),
    "half_chain": (
        graph({"x": half(64, 48), "y": half(64, 48), "b": half(48)}, op("a", "add", "x", "y"), op("m", "mul", "a", "b"),
              op("z", "relu", "m"),
              out="z"),
        "n0 n1 n2",
        """schedule {
          spread {
            tile (i0) block 8 thread 2
            tile (i1) block 64 thread 8 vector 8
          }
        }""",
    ),
    "half_layer_norm": (
        graph({"x": half(10, 192), "s": (192,), "b": (192,)}, op("w", "cast", "x", to="f32"),
              op("n", "layer_norm", "w", "s", "b"), op("y", "cast", "n", to="bf16"),
              out="y"),
        "n0 n1 n2",
        """schedule {
          spread reduction_threads 32 row_vector 8 {
            tile (i0) block 2 thread 1
            k_loop { block_k (r0) by 256 }
            k_loop { block_k (r0) by 256 }
          }
        }""",
    ),
    "half_gemm": (
        graph({"a": half(72, 64), "b": half(64, 56), "c": half(56)}, op("ab", "matmul", "a", "b"),
              op("d", "add", "ab", "c"), op("y", "relu", "d"),
              out="y"),
        "n0 n1 n2",
        """schedule {
          spread {
            tile (i0) block 16 thread 2
            tile (i1) block 64 thread 8 vector 8
            k_loop stages 2 { block_k (r0) by 16  stage 0 pad 8  stage 1 }
          }
        }""",
    ),
    "warpgroup_gemm": (
        graph({"a": half(136, 128), "b": half(128, 72), "c": half(72)}, op("ab", "matmul", "a", "b"),
              op("d", "add", "ab", "c"), op("y", "relu", "d"),
              out="y"),
        "n0 n1 n2",
        """schedule {
          spread {
            tile (i0) block 128 thread 2
            tile (i1) block 64 thread 16 vector 2
            k_loop stages 3 mma m64n8k16_bf16 rows 0 columns 1 {
              block_k (r0) by 64
              stage 0 order (1, 0) swizzle 128
              stage 1 swizzle 128
            }
          }
        }""",
    ),
}  # fmt: skip


def schedule_of(form: FusedGroup, text: str) -> Schedule:
    """Return a schedule over the axes of a group."""
    axes = print_ir(form).partition("\n")[0]
    found = parse_ir(f"{axes}\n\n{text}")
    assert isinstance(found, Schedule)
    return found


@pytest.mark.parametrize("dialect", TARGETS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel(kernel: str, dialect: str, golden: Callable[[str], None]) -> None:
    made, units, text = KERNELS[kernel]
    group, target = fuse_units(made, units), find_target(TARGETS[dialect])
    assert isinstance(group, Group)
    schedule = schedule_of(group.form, text)
    assert check_schedule(group.form, schedule, target) == []
    golden(emit(extract(lower(group.form, schedule, {}, target)), target.dialect).source)
