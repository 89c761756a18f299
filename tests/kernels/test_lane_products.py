"""Products of the numbers of lanes by matrix instructions."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.backends.compilers.cubins import compile_kernels
from cuts.ir import (
    DType,
    FusedGroup,
    ReduceDim,
    ReductionSchedule,
    Schedule,
    SegmentSchedule,
    TileDim,
    parse_ir,
)
from cuts.passes.instructions import lane_products
from cuts.passes.lowering import extract, lower
from cuts.passes.schedule import check_schedule
from cuts.tests.emission import emit

from ..needs import needs_cuda, needs_opencl, needs_toolchain
from . import test_packed_weights as packed
from .test_block_scales import with_scales
from .test_matrix_instructions import GPU, _device, check, product

#: Instruction in the text of each dialect.
CALL = {"opencl": "cuts_m16n8k16_bf16((", "cuda": "cuts_lane_products_bf16("}
WORDS = """var i < 64, k < 512

group {
  tensor x: bf16[512]
  tensor w: KIND
  tensor s: f32[64, 4]
  tensor y: f32[64]
  tensor acc: f32[64]
  inputs x, w, s
  outputs y
  segment (i) {
    reduce acc = sum over (k) of x[k] * NUMBER * s[i, (k // 128)]
    output y[i] = acc[i]
  }
}
"""
NUMBERS = {
    "u8[64, 256]": "(bf16(bitand(shr(w[i, (k // 2)], index(4*(k % 2)):u8), 15:u8)) - 8.0:bf16)",
    "u8[64, 128]": "bf16(bitand(shr(w[i, (k // 4)], index(2*(k % 4)):u8), 3:u8))",
}


def point(group: FusedGroup, lanes: int, vector: int, thread: int, threads: int = 4, trips: int = 1) -> Schedule:
    """Return a point whose reduction threads multiply the numbers of a row."""
    (segment,) = group.segments
    (total,) = segment.reductions
    rows = [a for a in segment.axes if a.extent > 1]
    dims = tuple(TileDim((a,), thread * threads, thread) if a in rows else TileDim((a,), 1, 1) for a in segment.axes)
    step, depth = lanes * vector, total.reduce[0].extent
    block_k = -(-depth // (step * trips)) * step
    loop = ReductionSchedule((ReduceDim(total.reduce, block_k),))
    return Schedule((SegmentSchedule(dims, (loop,), reduction_threads=lanes, row_vector=vector),))


def text(group: FusedGroup, schedule: Schedule, dialect: str) -> str:
    assert check_schedule(group, schedule, GPU) == []
    return emit(extract(lower(group, schedule, {}, GPU)), dialect).source


@pytest.fixture
def emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lanes multiply halves in OpenCL."""
    monkeypatch.setattr(lane_products, "MAX_BITS", 16)


@needs_opencl
@pytest.mark.usefixtures("emulation")
@pytest.mark.parametrize("depth", [256, 331])
@pytest.mark.parametrize(("lanes", "vector", "thread", "trips"), [(32, 8, 4, 1), (16, 4, 3, 2), (8, 2, 1, 4)])
def test_lanes_multiply_opencl(depth: int, lanes: int, vector: int, thread: int, trips: int) -> None:
    group = product(DType.BF16, "", (1, 1, 40, depth), (False, True))
    schedule = point(group, lanes, vector, thread, trips=trips)
    assert (CALL["opencl"] in text(group, schedule, "opencl")) is (depth % vector == 0)
    check(_device("opencl"), GPU, group, schedule)


@needs_opencl
@pytest.mark.usefixtures("emulation")
@pytest.mark.parametrize(("block", "common"), [(64, True), (16, False)])
def test_lanes_with_common_scales_multiply_opencl(block: int, common: bool) -> None:
    group = with_scales(product(DType.BF16, "", (1, 1, 40, 256), (False, True)), block, widest=2)
    schedule = point(group, 32, 8, 2)
    assert (CALL["opencl"] in text(group, schedule, "opencl")) is common
    check(_device("opencl"), GPU, group, schedule)


@needs_toolchain
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_few_bits_are_multiplied(kind: str) -> None:
    group = parse_ir(WORDS.replace("KIND", kind).replace("NUMBER", NUMBERS[kind]))
    assert isinstance(group, FusedGroup)
    functions = [emit(extract(lower(group, point(group, 16, 16, n), {}, GPU)), "cuda") for n in (2, 1)]
    assert all(CALL["cuda"] in f.source for f in functions)
    assert all(cubin.code for arch in ("sm_75", "sm_90") for cubin in compile_kernels(functions, arch))


@needs_cuda
@pytest.mark.parametrize("kind", ["u1", "u2", "i4", "u4"])
@pytest.mark.parametrize(("block", "zero"), [(128, False), (32, False), (128, True)])
def test_rows_of_few_bits_cuda(kind: str, block: int, zero: bool) -> None:
    graph = packed.product(kind, 1, 2048, 200, block, zero, turned=True, dtype=DType.BF16)
    (result,) = packed.compile_graph(graph, "cuda").verify()
    assert result.ok, result.text


def bf16(words: np.ndarray) -> np.ndarray:
    return (words.astype(np.uint32) << 16).view(np.float32)


def test_halves_of_words_become_numbers() -> None:
    few = np.arange(16, dtype=np.uint32)
    assert np.array_equal(bf16(few | 0x4300) - 136, few - 8.0)
