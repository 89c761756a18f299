"""Register staging of operands along the depth.

A fetch loads them word by word before a K block is multiplied, and stores them in vectors after it.
"""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target, open_device
from cuts.ir.kernel import Loop, Phase
from cuts.ir.schedule import ReduceDim, ReductionSchedule, Schedule, SegmentSchedule, Staging, TileDim
from cuts.ir.segment import FusedGroup
from cuts.ir.text import parse_ir, print_ir
from cuts.ir.verify import kernel_violations
from cuts.passes.lowering import extract, lower
from cuts.passes.lowering.races import check_barriers
from cuts.passes.model import features_of
from cuts.passes.schedule import check_schedule, make_space
from cuts.passes.schedule.selection.enumerate import to_schedule
from cuts.tests.amounts import examples
from cuts.tests.emission import emit
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ..fuzz.planting import Bug, mutate_function
from ..needs import needs_opencl
from .test_points import SMALL_GPU, check

GPU = find_target("cuda:sm_90")
PRODUCT = """var b < {b}, m < {m}, n < {n}, k < {k}

group {{
  tensor "x": {dtype}[{x}]
  tensor "w": {dtype}[{w}]
  tensor "y": {dtype}[{b}, {m}, {n}]
  tensor acc: {sums}[{b}, {m}, {n}]
  inputs "x", "w"
  outputs "y"
  segment (b, m, n) {{
    reduce acc = sum over (k) of {first} * "w"[{wi}]
    output "y"[b, m, n] = {result}
  }}
}}
"""
#: A convolution with channels innermost: rows are pixels of all images, columns the filters, both along the depth.
CONVOLUTION = """var i < 2, p < 5, q < 7, o < 12, r < 3, c < 6

group {
  tensor "x": f32[2, 5, 9, 6]
  tensor "w": f32[12, 3, 6]
  tensor "y": f32[2, 5, 7, 12]
  tensor acc: f32[2, 5, 7, 12]
  inputs "x", "w"
  outputs "y"
  segment (i, p, q, o) {
    reduce acc = sum over (r, c) of "x"[i, p, q + r, c] * "w"[o, r, c]
    output "y"[i, p, q, o] = acc[i, p, q, o]
  }
}
"""
#: Forms of the first factor: a tensor, or a value that a fetch computes of it.
FACTORS = ("{}", "max({}, 0.0:{dtype})", "({} * {} + {})", "({} + {first})")


def product(
    sizes: tuple[int, int, int, int], order: str = "mk,kn", dtype: str = "f32", factor: str = "{}"
) -> FusedGroup:
    """Return y[b, m, n] = sum over k of x * w.

    The last two indices of the factors have some order.
    """
    extents = dict(zip("bmnk", sizes, strict=True))
    x, w = ("b" + part for part in order.split(","))
    read = f'"x"[{", ".join(x)}]'
    text = PRODUCT.format(
        **extents,
        dtype=dtype,
        sums="f32" if dtype == "f16" else dtype,
        result="f16(acc[b, m, n])" if dtype == "f16" else "acc[b, m, n]",
        x=", ".join(str(extents[c]) for c in x),
        w=", ".join(str(extents[c]) for c in w),
        wi=", ".join(w),
        first=factor.replace("{}", read).format(dtype=dtype, first=read.replace("k", "0")),
    )
    group = parse_ir(text)
    assert isinstance(group, FusedGroup)
    return group


def register_staged(
    group: FusedGroup,
    rows: tuple[int, int] = (16, 4),
    columns: tuple[int, int] = (16, 4),
    chunk: int = 8,
    stages: int = 2,
    pad: int = 4,
    vector: int = 4,
) -> Schedule:
    """Return a product's point with both factors staged.

    Operands along the depth are staged through registers.
    """
    batch, *sides = group.segments[0].axes
    (reduction,) = group.segments[0].reductions
    tiles = [TileDim((a,), *size, min(vector, size[1])) for a, size in zip(sides, (rows, columns), strict=True)]
    staging = tuple(Staging(n, (), pad, register_staged=True) for n in range(2))
    loop = ReductionSchedule((ReduceDim(reduction.reduce, chunk),), staging, stages)
    return Schedule((SegmentSchedule((TileDim((batch,), 1, 1), *tiles), (loop,)),))


def test_products_lie_between_the_loads_and_their_store() -> None:
    group = product((1, 64, 64, 64))
    kernel = lower(group, register_staged(group, stages=3), {}, GPU)
    (loop,) = (item for item in kernel.items if isinstance(item, Loop))
    names = [item.name for item in loop.body if isinstance(item, Phase)]
    assert names == ["s0r0fetch0_store", "s0r0fetch0", "s0r0fetch1", "s0r0"]
    source = emit(extract(kernel), "cuda").source
    turn = source[source.index("for (int s0r0it") :]
    stored, loaded = turn.index("= make_float4("), turn.index(" = p1[")
    assert stored < loaded < turn.index("+= (")
    assert turn.count("if (") == 1, "only copies are left out after the last chunk"
    assert "cuts_copy4" not in source, "the other factor is copied sixteen bytes at a time"


@pytest.mark.parametrize("stages", [1, 2])
def test_two_loads_of_an_element_are_staged(stages: int) -> None:
    group = product((1, 64, 64, 64), factor="({} + {first})")
    kernel = lower(group, register_staged(group, stages=stages), {}, GPU)
    assert check_barriers(kernel) == ()
    assert kernel_violations(kernel) == []


def test_a_schedule_with_carried_operands_prints_and_parses() -> None:
    group = product((1, 64, 64, 64))
    for node in (
        register_staged(group),
        lower(group, register_staged(group), {}, GPU),
        extract(lower(group, register_staged(group), {}, GPU)),
    ):
        assert parse_ir(print_ir(node)) == node


@pytest.mark.parametrize(("pad", "atom"), [(1, ""), (4, "m16n8k8_tf32")])
def test_register_staging_needs_even_padding_and_no_instruction(pad: int, atom: str) -> None:
    group = product((1, 64, 64, 64))
    schedule = register_staged(group, pad=pad)
    (part,) = schedule.segments
    loop = evolve(part.reductions[0], mma=atom, rows=1, columns=2)
    found = check_schedule(group, evolve(schedule, segments=(evolve(part, reductions=(loop,)),)), GPU)
    assert any("carried" in reason for reason in found) or (atom and found)


def test_space_offers_register_staging_only_along_the_depth() -> None:
    def offers(order: str) -> bool:
        knobs = [k for s in make_space(product((1, 64, 64, 64), order), GPU).templates for k in s.parameters]
        return any(3 in values for k in knobs for values in k.values if k.names == ("s0.order",))

    assert offers("mk,kn")
    assert offers("km,nk")
    assert not offers("km,kn")


def test_counted_points_match_their_register_staged_schedules() -> None:
    space = make_space(product((1, 64, 48, 40), "mk,nk"), GPU)
    rng = np.random.default_rng(0)
    found = 0
    for number in rng.integers(0, space.size, 4000):
        schedule = to_schedule(space, int(number))
        staging = schedule.segments[0].reductions[0].staging
        if not any(s.register_staged for s in staging) or check_schedule(space.group, schedule, GPU):
            continue
        found += 1
        kernel = lower(space.group, schedule, {}, GPU)
        assert check_barriers(kernel) == ()
        assert kernel_violations(kernel) == []
        assert kernel_violations(extract(kernel), threads=True) == []
        assert kernel.shared_bytes == features_of(space.group, schedule, GPU).shared
    assert found > 10


#: Bugs of rings that threads carry tiles to.
BUGS = (
    Bug("ring", "what is carried is stored where it is read",
        "passes.lowering.k_loop.software_pipeline:SharedPipeline.stage_registers",
        "self.fetch(at + 1).stored", "self.fetch(at).stored"),
    Bug("ring", "the first chunk that is carried is not stored",
        "passes.lowering.k_loop.software_pipeline:SharedPipeline.prologue",
        "*every[0].stored, ", ""),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda b: b.name)
def test_planted_register_staging_bug_is_a_race(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    group = product((1, 64, 64, 64))
    original, wrong = mutate_function(bug)
    assert check_barriers(lower(group, register_staged(group), {}, GPU)) == ()
    monkeypatch.setattr(original, "__code__", wrong.__code__)
    assert check_barriers(lower(group, register_staged(group), {}, GPU))


@needs_opencl
@settings(max_examples=examples(20, 600), deadline=None, suppress_health_check=[*HealthCheck])
@given(st.data())
def test_carried_products_compute_what_they_mean(data: st.DataObject) -> None:
    extent = st.integers(1, 37)
    dtype = data.draw(st.sampled_from(["f32", "f32", "i32", "f16"]))
    factor = data.draw(st.sampled_from(FACTORS)) if dtype == "f32" else FACTORS[0]
    order = data.draw(st.sampled_from(["mk,kn", "mk,nk", "km,nk"]))
    group = product((data.draw(st.integers(1, 2)), *(data.draw(extent) for _ in range(3))), order, dtype, factor)
    side = st.sampled_from([(8, 4), (16, 4), (8, 2), (12, 4), (6, 2), (4, 1), (16, 8)])
    schedule = register_staged(
        group,
        data.draw(side),
        data.draw(side),
        data.draw(st.sampled_from([1, 3, 4, 5, 8, 16])),
        data.draw(st.integers(1, 3)),
        data.draw(st.sampled_from([0, 2, 4])),
        data.draw(st.sampled_from([1, 2])),
    )
    assume(not check_schedule(group, schedule, SMALL_GPU))
    check(open_device(find_target("opencl")), SMALL_GPU, group, schedule)


@needs_opencl
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_carried_convolution_computes_what_it_means(stages: int) -> None:
    group = parse_ir(CONVOLUTION)
    assert isinstance(group, FusedGroup)
    i, p, q, o = group.segments[0].axes
    (reduction,) = group.segments[0].reductions
    staging = tuple(Staging(n, (), 4, register_staged=True) for n in range(2))
    loop = ReductionSchedule((ReduceDim(reduction.reduce, 8),), staging, stages)
    dims = TileDim((i, p, q), 16, 4, 4), TileDim((o,), 8, 2, 2)
    schedule = Schedule((SegmentSchedule(dims, (loop,)),))
    assert check_schedule(group, schedule, SMALL_GPU) == []
    kernel = lower(group, schedule, {}, SMALL_GPU)
    assert check_barriers(kernel) == ()
    assert sum(item.name.endswith("_store") for item in kernel.items if isinstance(item, Phase)) >= 2 or stages == 1
    check(open_device(find_target("opencl")), SMALL_GPU, group, schedule)
