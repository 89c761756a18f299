"""Layout of shared memory in the text of kernels.

Declared buffers are the counted ones, and no two overlap, for every type.
"""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from attrs import frozen
from cuts.backends.compilers.cubins import compile_kernels
from cuts.backends.devices import find_target
from cuts.backends.source.dialect.dialects import DIALECTS
from cuts.ir.compiled import KernelFunction
from cuts.ir.kernel import Kernel, phases
from cuts.ir.segment import FusedGroup
from cuts.ir.text import print_ir
from cuts.ir.types import DType
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.schedule.selection.choose import choose
from cuts.passes.schedule.space import make_space
from cuts.tests.amounts import examples
from cuts.tests.emission import emit
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ..needs import DEVICES, needs_toolchain
from .cases import builder, halves, legal_points, points, unite
from .test_points import SPACES, _device, check

GPU = find_target("cuda:sm_90")
#: Bytes of the C types that elements have in memory.
BYTES = {
    "double": 8, "float": 4, "uchar": 1, "ushort": 2, "long long": 8, "unsigned long long": 8, "long": 8,
    "unsigned long": 8, "int": 4,
    "unsigned int": 4, "short": 2, "unsigned short": 2, "char": 1, "signed char": 1, "unsigned char": 1,
}  # fmt: skip
#: OpenCL's buffer for emulated matrix instructions is none that lowering counts.
OWN = re.compile(r"(?:__shared__ __align__\(16\)|__local) ([a-z ]+?) ((?!atom_scratch)\w+?)(?:_bits)?\[(\d+)\]")
PART = re.compile(r"([a-z ]+?)\* const (\w+) = reinterpret_cast<([a-z ]+)\*>\(pool \+ (\d+)\);")


@frozen
class Place:
    """Position of a buffer.

    In the pool from a byte on, or on its own.
    """

    name: str
    start: int
    nbytes: int


def places(function: KernelFunction, kernel: Kernel) -> list[Place]:
    """Read the layout from a kernel's text.

    `elements` of parts of the pool are those that lowering counted.
    """
    elements = {b.name: b.elements for b in kernel.shared}
    found = [Place(name, 0, int(count) * BYTES[kind]) for kind, name, count in OWN.findall(function.source)]
    for kind, name, other, offset in PART.findall(function.source):
        assert kind.strip() == other
        found.append(Place(name, int(offset), elements[name] * BYTES[other]))
    return found


def check_layout(kernel: Kernel, dialect: str) -> int:
    """Assert the law for one kernel; return how many buffers it has."""
    function = emit(kernel, dialect)
    counted = {b.name: b for b in kernel.shared}
    found = places(function, kernel)
    for place in found:
        buffer = counted[place.name]
        assert place.nbytes == buffer.elements * buffer.dtype.size, (
            f"{place} holds other elements than {buffer}\n{function.source}"
        )
        assert place.start % 16 == 0
    if function.dynamic_shared:
        order = sorted(found, key=lambda p: p.start)
        assert all(a.start + a.nbytes <= b.start for a, b in pairwise(order)), function.source
        assert order[-1].start + order[-1].nbytes <= function.dynamic_shared
    else:
        assert sum(p.nbytes for p in found) <= kernel.shared_bytes
    return len(found)


def product_of(dtype: DType, m: int, n: int, k: int) -> FusedGroup:
    """Return the group of a product of matrices of an element type."""
    make = builder()
    value = make.node("matmul", make.input(m, k, dtype=dtype), make.input(k, n, dtype=dtype))
    return unite(make.programs(), value)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("dtype", [d for d in DType if d.is_float], ids=str)
def test_staged_tiles_hold_what_was_counted(dtype: DType, dialect: str) -> None:
    group = product_of(dtype, 64, 48, 40)
    space = make_space(group, GPU)
    buffers = 0
    for structure in space.templates:
        for schedule in legal_points(space, structure, 3, 12):
            buffers += check_layout(extract(lower(group, schedule, {}, GPU)), dialect)
    assert buffers


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BOOL], ids=str)
def test_scratch_of_lanes_holds_what_was_counted(dtype: DType, dialect: str) -> None:
    make = builder()
    value = make.node("reduce_max", make.input(3, 515, dtype=dtype), axes=(1,))
    group = unite(make.programs(), value)
    space = make_space(group, GPU)
    for structure in space.templates:
        for schedule in legal_points(space, structure, 3, 12):
            check_layout(extract(lower(group, schedule, {}, GPU)), dialect)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("dtype", [DType.F16, DType.F32], ids=str)
def test_tensor_shared_by_segments_holds_counted_elements(dtype: DType, dialect: str) -> None:
    make = builder()
    first = make.node("conv", make.input(1, 4, 12, 12, dtype=dtype), make.input(6, 4, 3, 3, dtype=dtype))
    last = make.node("conv", first, make.input(3, 6, 3, 3, dtype=dtype))
    group = halves(make, first, 1, last)
    assert isinstance(group, FusedGroup)
    space = make_space(group, GPU)
    for structure in space.templates:
        for schedule in legal_points(space, structure, 3, 8):
            assert check_layout(extract(lower(group, schedule, {}, GPU)), dialect)


@needs_toolchain
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=str)
def test_machine_without_asynchronous_copies_gets_none(dtype: DType) -> None:
    target = find_target("cuda:rtx2080")
    group = product_of(dtype, 64, 48, 40)
    structures = [s for s in make_space(group, target).templates if any(p.stages_any for p in s.segments)]
    points = [p for s in structures for p in legal_points(make_space(group, target), s, 3, 6)]
    ringed = [p for p in points if p.segments[0].reductions[0].stages > 1]
    assert ringed
    compile_kernels([emit(extract(lower(group, p, {}, target)), "cuda") for p in ringed[:2]], target.arch)


@needs_toolchain
@pytest.mark.parametrize("shape", [(2048, 2048, 2048), (2048, 4096, 11008)], ids=str)
def test_large_products_of_halves_compile(shape: tuple[int, int, int]) -> None:
    target = find_target("cuda:h200")
    group = product_of(DType.F16, *shape)
    for candidate in choose(group, target, count=3):
        kernel = extract(lower(group, candidate.schedule, {}, target))
        assert check_layout(kernel, "cuda")
        (cubin,) = compile_kernels([emit(kernel, "cuda")], target.arch)
        assert cubin.spill_bytes == 0


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=examples(12, 250), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_points_of_halves_compute_what_the_group_means(device: str, data: st.DataObject) -> None:
    m, n, k = (data.draw(st.sampled_from((5, 16, 19, 64))) for _ in range(3))
    space = SPACES[device]
    group = product_of(DType.F16, m, n, k)
    schedule = data.draw(points(group, space))
    assume(schedule is not None)
    check(_device(device), space, group, schedule)


@pytest.mark.parametrize("dtype", [DType.F16, DType.F32], ids=str)
def test_one_stage_of_halves_passes_no_registers(dtype: DType) -> None:
    """Registers hold numbers of 4 bytes: halves would be converted twice."""
    group = product_of(dtype, 64, 64, 64)
    space = make_space(group, GPU)
    structures = [s for s in space.templates if any(p.stages_any and not p.mma for p in s.segments)]
    found = [p for s in structures for p in legal_points(space, s, 20, 6)]
    kernels = [lower(group, p, {}, GPU) for p in found if p.segments[0].reductions[0].stages == 1]
    copied = [k for k in kernels if any(phase.asynchronous for phase in phases(k.items))]
    assert bool(copied) == (dtype is DType.F16)
    for kernel in copied:
        assert "wait 0" in print_ir(kernel)
