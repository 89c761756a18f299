"""Reductions by matrix instructions, exact for small integers.

Every product and sum is exact, so that the result equals the reference for all shapes, layouts and points. On OpenCL
matrix instructions are emulated by their own maps; on a GPU they are instructions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.device import Device, Pointer
from cuts.backends.devices import find_target, open_device
from cuts.ir import parse_ir, print_ir
from cuts.ir.affine import Guard, Var, as_index
from cuts.ir.compiled import KernelFunction, Storage
from cuts.ir.expr import Call, Cast, Read, call
from cuts.ir.machine import MMA_INSTRUCTIONS, Target
from cuts.ir.schedule import ReduceDim, ReductionSchedule, Schedule, SegmentSchedule, Staging, TileDim
from cuts.ir.segment import FusedGroup, Output, Reduction, Segment
from cuts.ir.types import DType, TensorType, strided_view
from cuts.ir.verify.kernel import kernel_violations
from cuts.passes.fusion.interpret import interpret
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.lowering.races import check_barriers
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.space import make_space
from cuts.tests.amounts import examples
from cuts.tests.emission import emit
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ..needs import needs_cuda, needs_opencl
from .cases import legal_point

GPU = find_target("cuda:sm_90")
#: Operands that lie densely in buffers of their own.
NO_STORAGES: Mapping[str, Storage] = MappingProxyType({})
NO_ARRAYS: Mapping[str, np.ndarray] = MappingProxyType({})
_SUPPRESSED_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
#: Format of operands, one or that of either -> math mode of the reduction.
KINDS = ("f16", "bf16", "i8", "u8", "u8_i8", "i8_u8", "f8e4m3", "f8e5m2")
MODES = {"tf32": ("tf32", "fp32x3"), **dict.fromkeys(KINDS, ("",))}


@cache
def _device(name: str) -> Device:
    return open_device(find_target(name))


def product(kind: DType, mode: str, shape: tuple[int, ...], turned: tuple[bool, bool]) -> FusedGroup:
    """Return the maximum of a matrix product and 0.

    It is y[b, m, n] = max(sum over k of a * c, 0). Operands lie row by row or column by column.
    """
    b, m, n, k = (Var(name, extent) for name, extent in zip("bmnk", shape, strict=True))
    a_at, c_at = (b, k, m) if turned[0] else (b, m, k), (b, n, k) if turned[1] else (b, k, n)
    added = DType.F32 if kind.is_float else DType.I32
    reads = [Read(t, tuple(as_index(v) for v in at)) for t, at in (("a", a_at), ("c", c_at))]
    factors = reads if kind.is_float else [Cast(added, r) for r in reads]
    axes = tuple(as_index(v) for v in (b, m, n))
    total = Reduction("t", (k,), "sum", Call("mul", tuple(factors)), mode)
    body = call("add", Read("t", axes), Read("d", (axes[2],)))
    types = {t: TensorType(kind, tuple(v.extent for v in at)) for t, at in (("a", a_at), ("c", c_at))}
    result = TensorType(added, shape[:3])
    segment = Segment((b, m, n), (total,), (Output("y", axes, body),))
    return FusedGroup(
        (segment,), types | {"d": TensorType(added, shape[2:3]), "t": result, "y": result}, ("a", "c", "d"), ("y",)
    )


def convolution(
    kind: DType, mode: str, shape: tuple[int, ...], stride: int, last: bool = False, dilation: int = 1
) -> FusedGroup:
    """Return a 3x3 convolution with a border of zeros.

    Its layout is NCHW, or has channels `last` in memory and among its axes.
    """
    n, k, size, c = shape
    out = (size + 1) // stride
    first = dict(zip("nkpq", (Var(x, e) for x, e in zip("nkpq", (n, k, out, out), strict=True)), strict=True))
    cc, r, s = Var("c", c), Var("r", 3), Var("s", 3)
    order, reduce = ("npqk", (r, s, cc)) if last else ("nkpq", (cc, r, s))
    filters = (*reduce, first["k"]) if last else (first["k"], *reduce)
    axes = tuple(first[x] for x in order)
    row, column = ((first[x] * stride + tap * dilation - dilation) for x, tap in (("p", r), ("q", s)))
    guards = tuple(g for g in (Guard(row, 0, size), Guard(column, 0, size)) if not g.always)
    pixel = {"n": (as_index(first["n"]), n), "k": (as_index(cc), c), "p": (row, size), "q": (column, size)}
    image = Read("a", tuple(pixel[x][0] for x in order), guards)
    weight = Read("c", tuple(as_index(v) for v in filters))
    added = DType.F32 if kind.is_float else DType.I32
    factors = (image, weight) if kind.is_float else (Cast(added, image), Cast(added, weight))
    total = Reduction("t", reduce, "sum", Call("mul", factors), mode)
    at = tuple(as_index(v) for v in axes)
    segment = Segment(axes, (total,), (Output("y", at, Read("t", at)),))
    result = TensorType(added, tuple(v.extent for v in axes))
    types = {"a": TensorType(kind, tuple(pixel[x][1] for x in order)), "t": result, "y": result}
    types["c"] = TensorType(kind, tuple(v.extent for v in filters))
    return FusedGroup((segment,), types, ("a", "c"), ("y",))


@st.composite
def groups(draw: st.DrawFn, kinds: tuple[str, ...]) -> FusedGroup:
    """Draw a sum of products in the types of an atom."""
    name, _, other = draw(st.sampled_from(kinds)).partition("_")
    mode = draw(st.sampled_from(MODES[name]))
    kind = DType.F32 if name == "tf32" else DType(name)
    second = DType(other) if other else kind
    if draw(st.booleans()):
        extent = st.sampled_from((1, 3, 8, 13, 16, 17, 31, 40, 64))
        shape = (draw(st.sampled_from((1, 1, 2, 3))), draw(extent), draw(extent), draw(extent))
        return with_second(product(kind, mode, shape, (draw(st.booleans()), draw(st.booleans()))), second)
    sizes = st.sampled_from((3, 5, 8, 9))
    channels = draw(st.sampled_from((3, 5, 8, 9, 16, 40)))
    shape = (draw(st.sampled_from((1, 2))), draw(st.sampled_from((4, 17, 24))), draw(sizes), channels)
    return with_second(convolution(kind, mode, shape, draw(st.sampled_from((1, 2))), draw(st.booleans())), second)


def with_second(group: FusedGroup, kind: DType) -> FusedGroup:
    """Return a sum of products whose second factor has another type."""
    return evolve(group, tensors={**group.tensors, "c": evolve(group.tensors["c"], dtype=kind)})


@st.composite
def atom_points(draw: st.DrawFn, group: FusedGroup, target: Target) -> Schedule | None:
    """Draw a legal point of a structure in which an atom multiplies."""
    space = make_space(group, target)
    structures = [s for s in space.templates if s.segments[0].mma]
    assume(structures)
    schedule = legal_point(space, draw(st.sampled_from(structures)), draw(st.integers(0, 1 << 30)))
    assume(schedule is not None)
    return schedule


def _integers(kind: TensorType, generator: np.random.Generator) -> np.ndarray:
    """Return small numbers, and all of an integer type of bytes."""
    element, whole = kind.dtype.element, kind.dtype.size == 1 and not kind.dtype.is_float
    low, high = (element.lowest, element.highest) if whole else (-8, 8)
    return generator.integers(int(low), int(high) + 1, kind.shape).astype(kind.dtype.numpy)


def meaning(group: FusedGroup, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Return a group's result in float64."""
    wide = {name: value.astype(np.float64) for name, value in arrays.items()}
    (out,) = group.outputs
    return interpret(group, wide)[out]


def check(
    device: Device,
    target: Target,
    group: FusedGroup,
    schedule: Schedule,
    storages: Mapping[str, Storage] = NO_STORAGES,
    given: Mapping[str, np.ndarray] = NO_ARRAYS,
) -> str:
    """Assert that a point is legal, verified, and computes the reference.

    Returns its source. Operands that are not given are random.
    """
    assert check_schedule(group, schedule, target) == []
    block = lower(group, schedule, storages, target)
    assert kernel_violations(block) == []
    assert check_barriers(block) == ()
    thread = extract(block)
    assert kernel_violations(thread, threads=True) == []
    for kernel in (block, thread):
        assert print_ir(parse_ir(print_ir(kernel))) == print_ir(kernel)
    generator = np.random.default_rng(1)
    arrays = {name: given.get(name, _integers(group.tensors[name], generator)) for name in group.inputs}
    function = emit(thread, device.target.dialect)
    result = run(device, function, group, arrays, storages)
    assert (result == meaning(group, arrays)).all(), f"{schedule}\n{function.source}"
    return function.source


def run(
    device: Device,
    function: KernelFunction,
    group: FusedGroup,
    arrays: dict[str, np.ndarray],
    storages: Mapping[str, Storage] = NO_STORAGES,
) -> np.ndarray:
    """Return a kernel's result, over memory that held no right one."""
    (out,) = group.outputs
    result = np.full(group.tensors[out].shape, 77, group.tensors[out].dtype.numpy)
    values = {**arrays, out: result} | {name: _laid_out(arrays[name], place) for name, place in storages.items()}
    buffers = {name: device.allocate(max(16, value.nbytes)) for name, value in values.items()}
    for name, value in values.items():
        device.upload(Pointer(buffers[name]), np.ascontiguousarray(value))
    starts = {name: place.offset * arrays[name].itemsize for name, place in storages.items()}
    (loaded,) = device.build([function])
    places = [Pointer(buffers[a.tensor], starts.get(a.tensor, 0)) for a in function.arguments]
    device.bind(loaded, function, places)()
    device.synchronize()
    device.download(result, Pointer(buffers[out]))
    return result


def _laid_out(array: np.ndarray, place: Storage) -> np.ndarray:
    """Return a buffer with an array at its place, full of ones elsewhere."""
    last = sum((extent - 1) * stride for extent, stride in zip(array.shape, place.strides, strict=True))
    buffer = np.ones(place.offset + last + 1, array.dtype)
    steps = tuple(stride * array.itemsize for stride in place.strides)
    strided_view(buffer[place.offset :], array.shape, steps)[...] = array
    return buffer


def check_what_is_no_number(device: Device, name: str, mode: str) -> None:
    """Assert that a NaN reaches its row or column and nothing else.

    Ragged ends are included. An infinity stays one where no operand is made of several parts, else it is a NaN.
    """
    kind = DType.F32 if name == "tf32" else DType(name)
    group = product(kind, mode, (1, 19, 13, 21), (False, False))
    space = make_space(group, SMALL_GPU)
    structure = next(s for s in space.templates if s.segments[0].mma)
    drawn = (legal_point(space, structure, seed) for seed in range(100))
    # Loops of several steps take PoCL half a minute to compile.
    schedule = next(s for s in drawn if s is not None and not s.segments[0].reductions[0].prefetch)
    function = emit(extract(lower(group, schedule, {}, SMALL_GPU)), device.target.dialect)
    arrays = {t: np.ones(group.tensors[t].shape, kind.numpy if t in "ac" else np.float32) for t in group.inputs}
    arrays["a"][0, 3, 20], arrays["a"][0, 7, 0], arrays["c"][0, 5, 12] = np.nan, np.inf, -np.nan
    expected = np.full((19, 13), 22.0)
    expected[7] = np.nan if mode == "fp32x3" or not kind.element.infinite else np.inf
    expected[3], expected[:, 12] = np.nan, np.nan
    np.testing.assert_array_equal(run(device, function, group, arrays)[0], expected)


#: The GPU's space as PoCL draws from it: few warps, because every atom meets twice.
SMALL_GPU = evolve(GPU, MAX_thread=64, MAX_shared=16384)


@needs_opencl
@settings(max_examples=examples(8, 150), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(st.data())
def test_atoms_compute_what_is_meant_opencl(data: st.DataObject) -> None:
    group = data.draw(groups(tuple(MODES)))
    check(_device("opencl"), SMALL_GPU, group, data.draw(atom_points(group, SMALL_GPU)))


@needs_cuda
@pytest.mark.parametrize("share", range(8))
@settings(max_examples=125, deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(st.data())
def test_atoms_compute_what_is_meant_cuda(share: int, data: st.DataObject) -> None:
    group = data.draw(groups(tuple(MODES)))
    check(_device("cuda"), GPU, group, data.draw(atom_points(group, GPU)))


def ahead_schedule(
    group: FusedGroup, name: str, threads: tuple[int, int], vectors: tuple[int, int], stages: int, warps: int
) -> Schedule:
    """Return a point with warp split-K and prefetched fragments.

    Warps divide the depth and load the fragments of each step ahead, two steps a K block; a thread holds so many rows
    and columns.
    """
    segment = group.segments[0]
    atom = next(a for a in MMA_INSTRUCTIONS.values() if a.format == name)
    (b, m, n), (k,) = segment.axes, segment.reductions[0].reduce
    sides = zip((m, n), (8, 4), threads, vectors, strict=True)
    dims = (TileDim((b,), 1, 1), *(TileDim((axis,), lanes * t, t, v) for axis, lanes, t, v in sides))
    staging = (Staging(0, (1, 0), 16 // group.tensors["a"].dtype.size), Staging(1, (), 0))
    loop = ReductionSchedule((ReduceDim((k,), 2 * atom.k * warps),), staging, stages, atom.name, 1, 2, 1)
    return Schedule((SegmentSchedule(dims, (loop,), warps),))


@st.composite
def wide_points(draw: st.DrawFn) -> tuple[FusedGroup, Schedule]:
    """Draw a product of halves and a point with neighbours in lanes.

    A lane holds neighbours of several matrix instructions. Halves lie row by row or column by column; the point has one
    warp, or two that divide the depth.
    """
    atom = MMA_INSTRUCTIONS["m16n8k16_f16"]
    m, n, k = (Var(name, draw(st.sampled_from(extents))) for name, extents in zip("mnk", SIZES, strict=True))
    axes = (m, n) if draw(st.booleans()) else (n, m)
    at = tuple(as_index(v) for v in axes)
    deep = draw(st.tuples(st.booleans(), st.booleans()))
    lying = [(v, k) if along else (k, v) for v, along in zip((m, n), deep, strict=True)]
    factors = [Read(t, tuple(map(as_index, dims))) for t, dims in zip("ac", lying, strict=True)]
    added = Read("d", at)
    output = Output(
        "y", at, Cast(DType.F16, call("add", Read("t", (as_index(m), as_index(n))), Cast(DType.F32, added)))
    )
    shapes = {"a": lying[0], "c": lying[1], "d": axes, "y": axes}
    types = {t: TensorType(DType.F16, tuple(v.extent for v in shape)) for t, shape in shapes.items()}
    types["t"] = TensorType(DType.F32, (m.extent, n.extent))
    segment = Segment((m, n), (Reduction("t", (k,), "sum", Call("mul", tuple(factors))),), (output,))
    dims = []
    for axis, lanes in ((m, 8), (n, 4)):
        vector = draw(st.sampled_from((1, 2, 4, 8) if axis is m else (2, 4, 8)))
        thread = max(2, vector) * draw(st.sampled_from((1, 2)))
        dims.append(TileDim((axis,), lanes * thread, thread, vector))
    stages, cached = draw(st.sampled_from(((1, False), (2, False), (3, True))))
    staging = tuple(Staging(n, (1, 0) if along else (), 8, cached) for n, along in enumerate(deep))
    warps = draw(st.sampled_from((1, 2)))
    loop = ReductionSchedule((ReduceDim((k,), atom.k * warps),), staging, stages, atom.name, 0, 1)
    group = FusedGroup((segment,), types, ("a", "c", "d"), ("y",))
    schedule = Schedule((SegmentSchedule(tuple(dims), (loop,), warps),))
    assume(check_schedule(group, schedule, SMALL_GPU) == [])
    return group, schedule


#: Extents of rows, columns and the depth of such products; sums of so few products are exact in f16.
SIZES = (40, 64, 90), (18, 32, 50), (8, 13, 24)


@needs_opencl
@settings(max_examples=examples(5, 100), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(wide_points())
def test_results_leave_as_vectors_of_several_atoms_opencl(point: tuple[FusedGroup, Schedule]) -> None:
    check(_device("opencl"), SMALL_GPU, *point)


@needs_cuda
@settings(max_examples=examples(30, 300), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(wide_points())
def test_results_leave_as_vectors_of_several_atoms_cuda(point: tuple[FusedGroup, Schedule]) -> None:
    check(_device("cuda"), GPU, *point)


#: Format and mode, whether B lies along the depth, rows and columns of a thread and the vectors of either, stages,
#: warps that divide the depth, depth: long and ragged, or shorter than the ring.
PREFETCH_POINTS = [
    ("bf16", "", False, (2, 4), (1, 2), 3, 1, 67),
    ("f16", "", True, (4, 2), (2, 2), 2, 2, 70),
    ("tf32", "tf32", True, (2, 4), (1, 4), 4, 1, 21),
    ("tf32", "fp32x3", False, (2, 2), (1, 2), 2, 2, 37),
]


@needs_opencl
@pytest.mark.parametrize(("name", "mode", "deep", "threads", "vectors", "stages", "warps", "depth"), PREFETCH_POINTS)
def test_prefetched_fragments_are_the_multiplied_ones_opencl(
    name: str,
    mode: str,
    deep: bool,
    threads: tuple[int, int],
    vectors: tuple[int, int],
    stages: int,
    warps: int,
    depth: int,
) -> None:
    kind = DType.F32 if name == "tf32" else DType(name)
    group = product(kind, mode, (1, 21, 18, depth), (False, deep))
    check(_device("opencl"), SMALL_GPU, group, ahead_schedule(group, name, threads, vectors, stages, warps))


FLOATS = [(name, mode) for name, modes in MODES.items() for mode in modes if "8" not in name or "f" in name]


@needs_opencl
@pytest.mark.parametrize(("name", "mode"), FLOATS)
def test_nan_stays_in_its_row_opencl(name: str, mode: str) -> None:
    check_what_is_no_number(_device("opencl"), name, mode)


@needs_cuda
@pytest.mark.parametrize(("name", "mode"), FLOATS)
def test_nan_stays_in_its_row_cuda(name: str, mode: str) -> None:
    check_what_is_no_number(_device("cuda"), name, mode)


@pytest.mark.parametrize("name", [name for name, atom in MMA_INSTRUCTIONS.items() if atom.other is None])
def test_every_atom_has_structures(name: str) -> None:
    """Targets that list a matrix instruction have templates with it."""
    atom = MMA_INSTRUCTIONS[name]
    target = evolve(GPU, atoms=((name, 4.0),))
    group = product(atom.held, MODES[atom.format][0], (1, atom.m + 16, 64, 32), (False, True))
    found = {s.segments[0].mma for s in make_space(group, target).templates}
    assert found == {"", name}
