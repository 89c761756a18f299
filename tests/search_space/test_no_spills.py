"""Unmeasured choices spill no registers.

They are compiled for a GPU that need not be there, and read from the compiler's log.
"""

from __future__ import annotations

from math import comb

import pytest
from attrs import evolve
from cuts.backends import find_target
from cuts.backends.compilers.cubins import compile_kernels
from cuts.backends.source import emit
from cuts.bench.operators.cases import gradient_case
from cuts.bench.operators.shapes import convolution_case, read_convolution
from cuts.bench.operators.tuning import tune
from cuts.ir import CompileOptions, DType, Graph, Node, Source, TensorType
from cuts.ops import Registry
from cuts.passes.context import CompileContext
from cuts.passes.lowering import extract, lower
from cuts.passes.pipeline import compile_graph, stage_results
from cuts.passes.schedule import choose
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.tests.emission import emit as emit_kernel
from cuts.tests.kernels.test_matrix_instructions import convolution
from cuts.tests.needs import needs_toolchain
from cuts.tests.products import FORMATS, product_group

pytestmark = pytest.mark.long

TARGET = find_target("cuda:sm_90")
BORDERS = {"zeros": ("{}", " outside 0"), "mirrored": ("mirror({}, {})", ""), "repeated": ("clamp({}, 0, {} - 1)", "")}


def blur(taps: int, border: str) -> str:
    """Declare a filter with binomial weights in a table."""
    index, outside = BORDERS[border]
    row, column = (
        index.format(f"{v} + {tap} - {taps // 2}", size) for v, tap, size in (("i", "a", "H"), ("j", "b", "W"))
    )
    line = [comb(taps - 1, k) / 2 ** (taps - 1) for k in range(taps)]
    rows = ", ".join("[" + ", ".join(str(a * b) for b in line) + "]" for a in line)
    return f"""op blur "weights in a table" {{
      in x: f32[C, H, W]
      table w: f32 = [{rows}]
      out y: f32[C, H, W]
      y[c, i, j] = sum[a < {taps}, b < {taps}] w[a, b] * (x[c, {row}, {column}]{outside})
    }}"""


def graph_of(registry: Registry, op: str, *shapes: tuple[int, ...], **attributes: object) -> Graph:
    """Return one operation of f32 tensors.

    Shapes that begin with -1 are positions.
    """
    types = [TensorType(DType.I64, s[1:]) if s[0] == -1 else TensorType(DType.F32, s) for s in shapes]
    names = tuple(f"x{n}" for n in range(len(types)))
    results = registry[op].instantiate(types, attributes).output_types
    outputs = tuple(f"y{n}" for n in range(len(results)))
    every = dict(zip((*names, *outputs), (*types, *results), strict=True))
    return Graph("g", names, outputs, every, (Node("n", op, names, outputs, attributes),))


CASES = {
    "blur of 5x5 taps": (blur(5, "zeros"), "blur", [(64, 256, 256)], {}),
    "small blur": (blur(5, "zeros"), "blur", [(3, 64, 64)], {}),
    "mirrored blur": (blur(7, "mirrored"), "blur", [(3, 512, 512)], {}),
    "repeated border": (blur(7, "repeated"), "blur", [(3, 64, 64)], {}),
    "product": ("", "matmul", [(512, 384), (384, 640)], {}),
    "convolution": ("", "conv", [(2, 32, 28, 28), (64, 32, 3, 3)], {}),
    "depthwise": ("", "conv", [(1, 96, 56, 56), (96, 1, 3, 3)], {"groups": 96}),
    "winograd": ("", "winograd_input", [(1, 32, 30, 30)], {}),
    "softmax": ("", "softmax", [(512, 1000)], {}),
    "norm": ("", "layer_norm", [(256, 768), (768,), (768,)], {}),
    "long rows and one sum": ("", "rms_norm", [(16384, 4096), (4096,)], {}),
    "rows of length one": ("", "lp_norm", [(65536, 512)], {"axis": 1}),
    "running sum": ("", "cumsum", [(4096, 4096)], {"axis": 1}),
    "residues": ("", "conv_transpose", [(4, 64, 32, 32), (64, 32, 4, 4)], {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "pooling": ("", "max_pool", [(1, 64, 56, 56)], {"kernel_shape": (3, 3), "strides": (2, 2)}),
    "attention": ("", "attention", [(1, 8, 128, 64), (1, 8, 128, 64), (1, 8, 128, 64)], {}),
    "scatter": ("", "scatter_nd", [(4000, 16), (-1, 5000, 1), (5000, 16)], {"reduction": "add"}),
}


@needs_toolchain
@pytest.mark.parametrize("case", CASES)
def test_what_is_chosen_without_measuring_spills_nothing(case: str) -> None:
    text, op, shapes, attributes = CASES[case]
    registry = Registry.builtin().extend(Source("own.cuts", text)) if text else Registry.builtin()
    graph = graph_of(registry, op, *shapes, **attributes)
    compiled = compile_graph(graph, registry, TARGET, CompileOptions(mode="no-fusion", verify=False), emit)
    spilled = {
        k.name: c.spill_bytes for k, c in zip(compiled.kernels, compile_kernels(compiled.kernels, "sm_90"), strict=True)
    }
    assert not any(spilled.values()), spilled


@needs_toolchain
@pytest.mark.parametrize(
    ("format_", "shape"),
    [
        ("bf16", (1, 4096, 4096, 4096)),
        ("f16", (1, 1023, 1025, 511)),
        ("tf32", (1, 2049, 2047, 2051)),
        ("fp32x3", (2, 512, 384, 640)),
    ],
)
def test_what_is_chosen_for_atoms_spills_nothing(format_: str, shape: tuple[int, int, int, int]) -> None:
    """Copies of unaligned rows take address registers.

    So do lengths that are no power of two.
    """
    group = product_group(FORMATS[format_], shape, FORMATS[format_].stored)
    (candidate,) = choose(group, TARGET)
    function = emit_kernel(extract(lower(group, candidate.schedule, {}, TARGET)), "cuda")
    (compiled,) = compile_kernels([function], "sm_90")
    assert compiled.spill_bytes == 0


@needs_toolchain
@pytest.mark.parametrize(("mode", "pixels"), [("f16", 28), ("f16", 7), ("tf32", 14), ("fp32x3", 14)])
def test_16_byte_copies_take_address_registers_once(mode: str, pixels: int) -> None:
    """Images with rows and columns as one dim and a border.

    Warps get as many matrix instructions as there is room for, and the estimate is close to the compiler's use.
    """
    kind = DType.F16 if mode == "f16" else DType.F32
    group = convolution(kind, "" if mode == "f16" else mode, (64, 256, pixels, 256), 1, last=True)
    found = choose(group, TARGET, count=4)
    functions = [emit_kernel(extract(lower(group, c.schedule, {}, TARGET)), "cuda") for c in found]
    for candidate, compiled in zip(found, compile_kernels(functions, "sm_90"), strict=True):
        assert compiled.spill_bytes == 0
        assert candidate.schedule.segments[0].reductions[0].mma
        assert 0.8 * compiled.registers <= candidate.features["needed"] <= 1.4 * compiled.registers


@needs_toolchain
def test_half_pool_spills_nothing_and_has_no_branches() -> None:
    """Channels lie innermost between convolutions.

    A thread takes several, and its loads come together.
    """
    registry = Registry.builtin()
    shapes = {"x": (64, 64, 56, 56), "u": (64, 64, 1, 1), "w": (64, 64, 1, 1)}
    half = {name: TensorType(DType.F16, shape) for name, shape in shapes.items()}
    result = TensorType(DType.F16, (64, 64, 56, 56))
    half |= {"a": result, "p": TensorType(DType.F16, (64, 64, 28, 28)), "y": TensorType(DType.F16, (64, 64, 28, 28))}
    window = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    nodes = (Node("conv 1", "conv", ("x", "u"), ("a",), {}), Node("pool", "max_pool", ("a",), ("p",), window),
             Node("conv 2", "conv", ("p", "w"), ("y",), {}))  # fmt: skip
    compiled = compile_graph(
        Graph("g", ("x", "u", "w"), ("y",), half, nodes),
        registry,
        TARGET,
        CompileOptions(mode="no-fusion", verify=False),
        emit,
    )
    (pool,) = [k for k in compiled.kernels if k.name.startswith("max_pool")]
    assert "cuts_guarded" in pool.source and "&&" not in pool.source[pool.source.index("__global__") :]
    assert compile_kernels([pool], "sm_90")[0].spill_bytes == 0


def test_thread_holds_neighbours_that_its_outputs_read() -> None:
    """With 16 mirrored outputs of 7x7 taps a thread, ptxas spills.

    It uses all 255 registers and spills 128 bytes.
    """
    registry = Registry.builtin().extend(Source("own.cuts", blur(7, "mirrored")))
    graph = graph_of(registry, "blur", (64, 256, 256))
    results = stage_results(
        graph, CompileContext(registry, TARGET, CompileOptions(mode="no-fusion", verify=False), emit)
    )
    scheduled = next(result for name, result in results if name == "schedule")
    ((key, group),) = scheduled.partition.unique.items()
    schedule = scheduled.chosen[key].schedule
    (segment,) = schedule.segments
    *outer, dim = segment.dims
    dims = (*(evolve(d, block=1, thread=1, vector=1) for d in outer), evolve(dim, block=256, thread=16, vector=1))
    wide = evolve(schedule, segments=(evolve(segment, dims=dims),))
    assert check_schedule(group.form, schedule, TARGET) == []
    (reason,) = check_schedule(group.form, wide, TARGET)
    assert "registers per thread" in reason


@needs_toolchain
def test_vectors_that_wait_for_inner_loops_are_registers() -> None:
    """Filter gradient of a first layer.

    Vectors of rows, kept while the columns inside of them ran, spilled.
    """
    first = convolution_case(read_convolution("3x224 64x7x7 /2 +3")[0], 64)
    (tuned,) = tune([gradient_case(first, 1, "wgrad")], find_target("cuda:h200"), emit, None)
    assert [cubin.spill_bytes for cubin in compile_kernels(tuned.kernels, "sm_90")] == [0] * len(tuned.kernels)
