"""Random points of sums of products, exact for small integers.

Products, convolutions and gradients of any type, layout and stride, with and without scales of blocks; points of every
instruction, form of copies and role of threads; operands with pitches and offsets of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256

import numpy as np
from attrs import evolve, field, frozen
from cuts.backends.devices import find_target, open_device
from cuts.ir.compiled import Storage
from cuts.ir.machine import Target
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.types import DType
from cuts.passes.schedule.space import make_space
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st

from ..kernels.cases import legal_points
from ..kernels.test_block_scales import with_scales
from ..kernels.test_grouped_products import operands, product_of
from ..kernels.test_matrix_instructions import MODES, check, groups, product
from ..kernels.test_walking_copies import convolution as walking_convolution
from ..kernels.test_warpgroup_products import drawn_groups, drawn_types, product_of_two, product_of_type
from .drawing import same_anywhere

#: Cases that one job of a worker draws.
BATCH = 20
#: The forms of copies, and the roles of threads.
COPIES = ("threads copy", "bulk copies", "producer", "persistent producer")
Storages = Mapping[str, Storage]


@st.composite
def boxes(draw: st.DrawFn) -> FusedGroup:
    """Draw a product whose operands are boxes of tensor maps."""
    sides = st.sampled_from((64, 128, 192, 256))
    depth = draw(st.sampled_from((64, 136, 200, 256, 512)))
    shape = (draw(st.sampled_from((1, 2, 3))), draw(sides), draw(st.sampled_from((64, 72, 128, 256))), depth)
    name = draw(st.sampled_from((*MODES, "fp32x3")))
    if name in ("f16", "bf16"):
        return product(DType(name), "", shape, (draw(st.booleans()), draw(st.booleans())))
    return product_of_type(name, shape, (True, True))


@st.composite
def block_scales(draw: st.DrawFn) -> FusedGroup:
    """Draw a product with scales of blocks."""
    sides = st.sampled_from((64, 70, 128, 144))
    shape = (draw(st.sampled_from((1, 2))), draw(sides), draw(sides), draw(st.sampled_from((128, 320, 512))))
    name = draw(st.sampled_from(("f8e4m3", "f8e5m2", "tf32", "fp32x3", "f16", "bf16")))
    return with_scales(product_of_type(name, shape, (True, True)), draw(st.sampled_from((32, 64, 128))))


@st.composite
def walks(draw: st.DrawFn) -> FusedGroup:
    """Draw a convolution of channels last, by windows that fall or rise."""
    small, channels = st.integers(7, 14), draw(st.sampled_from((64, 128)))
    shape = (draw(st.integers(1, 3)), draw(small), draw(small), channels, draw(st.sampled_from((48, 64, 80, 128))))
    window = (draw(st.sampled_from((1, 2, 3))), draw(st.integers(1, 3)), draw(st.integers(1, 2)))
    return walking_convolution((*shape, *window), draw(st.sampled_from((DType.F16, DType.BF16))), draw(st.booleans()))


@st.composite
def two_types(draw: st.DrawFn) -> FusedGroup:
    """Draw a product of two types of 8-bit floats."""
    kinds = draw(st.permutations((DType.F8E4M3, DType.F8E5M2)))
    sides = st.sampled_from((64, 70, 128))
    return product_of_two((kinds[0], kinds[1]), (1, draw(sides), draw(sides), draw(st.sampled_from((64, 160, 256)))))


#: Sums of products by name.
FORMS: Mapping[str, st.SearchStrategy[FusedGroup]] = {
    "boxes": boxes(), "walks": walks(), "scaled": block_scales(), "two types": two_types(),
    "small": groups(tuple(MODES)), "halves": drawn_groups(), "types": drawn_types(),
}  # fmt: skip


@frozen
class PointCase:
    """A group, one of its points, and the places of its operands."""

    form: str
    group: FusedGroup
    schedule: Schedule
    storages: Storages
    arrays: Mapping[str, np.ndarray] = field(factory=dict, eq=False)

    @property
    def kind(self) -> str:
        """The form, the instruction, the copies and roles, and the places."""
        loop = self.schedule.segments[0].reductions[0]
        return f"{self.form}: {loop.mma}: {COPIES[loop.tma]}{': strided' if self.storages else ''}"


@st.composite
def places(draw: st.DrawFn, group: FusedGroup) -> Storages:
    """Draw pitches and offsets of some operands, aligned and not."""
    found = {}
    for name in draw(st.lists(st.sampled_from(group.inputs), unique=True, max_size=2)):
        *outer, last = group.tensors[name].shape
        if not outer:
            continue
        pitch, strides = last + draw(st.sampled_from((0, 1, 4, 8, 16, 64))), [1]
        for extent in reversed(outer):
            strides.append(pitch)
            pitch *= extent
        found[name] = Storage(name, draw(st.sampled_from((0, 0, 1, 8, 16))), tuple(reversed(strides)))
    return found


@st.composite
def points(draw: st.DrawFn, group: FusedGroup, target: Target) -> Schedule:
    """Draw a legal point of an instruction, mostly a warpgroup's."""
    space = make_space(group, target)
    templates = [t for t in space.templates if t.segments[0].mma]
    assume(templates)
    wide = [t for t in templates if t.segments[0].mma.startswith("m64")]
    template = draw(st.sampled_from(wide if wide and draw(st.integers(0, 3)) else templates))
    found = legal_points(space, template, draw(st.integers(0, 1 << 30)), 32)
    assume(found)
    form = draw(st.sampled_from(range(len(COPIES))))
    return next((p for p in found if p.segments[0].reductions[0].tma == form), found[0])


@st.composite
def point_cases(draw: st.DrawFn, target: Target) -> PointCase:
    """Draw a sum of products, a point, and places of operands."""
    form = draw(st.sampled_from((*FORMS, "grouped")))
    if form != "grouped":
        group = draw(FORMS[form])
        return PointCase(form, group, draw(points(group, target)), draw(places(group)) if draw(st.booleans()) else {})
    op = draw(st.sampled_from(("grouped_matmul", "grouped_outer")))
    group, names = product_of(op, kind=draw(st.sampled_from((DType.F16, DType.BF16))))
    ends = draw(st.lists(st.integers(-5, 140), min_size=2, max_size=2))
    return PointCase(form, group, draw(points(group, target)), {}, operands(op, group, names, ends))


@frozen
class PointReport:
    """Kinds of a batch of cases by digest, and the first failure."""

    kinds: Mapping[str, str] = field(factory=dict)
    error: str = ""


def draw_cases(chosen: int, batch: int, target: Target, look: Callable[[PointCase], None], count: int = BATCH) -> None:
    """Call `look` with each case of a numbered batch."""

    def look_at(case: PointCase) -> None:
        look(case)

    run = settings(
        max_examples=count, phases=(Phase.generate,), database=None, deadline=None, derandomize=False,
        print_blob=False, suppress_health_check=list(HealthCheck),
    )(given(point_cases(target))(look_at))  # fmt: skip
    with same_anywhere():
        seed((chosen << 24) + batch)(run)()


def check_points(name: str, chosen: int, batch: int) -> PointReport:
    """Compute a batch of cases on a device and compare exactly."""
    target = find_target(name)
    space = evolve(find_target("cuda:h200"), MAX_shared=100_000) if target.on_host else target
    device, kinds = open_device(target), dict[str, str]()

    def look(case: PointCase) -> None:
        source = check(device, space, case.group, case.schedule, case.storages, case.arrays)
        kinds[sha256(f"{case.schedule}{case.storages}{source}".encode()).hexdigest()[:16]] = case.kind

    try:
        draw_cases(chosen, batch, space, look)
    except Exception as error:
        return PointReport(kinds, f"{type(error).__name__}: {error}"[:4000])
    return PointReport(kinds)
