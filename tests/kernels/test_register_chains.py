"""Chains in registers.

Legal points compute the reference, without races and spills, for any mask, length and width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.compilers.cubins import compile_kernels
from cuts.backends.devices import find_target
from cuts.ir import PERSISTENT, Barrier, Kernel, Loop, ProductWait, ProxyFence, Wait, phases
from cuts.ir.graph import Graph
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.kernel import kernel_violations
from cuts.passes.geometry import is_register_chain, register_chain, schedule_of
from cuts.passes.lowering import check_barriers
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.model import features_of
from cuts.passes.schedule import chain_templates
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.selection.choose import choose
from cuts.passes.schedule.selection.enumerate import columns_at, evaluate
from cuts.passes.schedule.space import make_space
from cuts.tests.amounts import examples
from cuts.tests.emission import emit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..needs import needs_cuda, needs_opencl, needs_toolchain
from .test_attention_chains import GPU, SMALL_GPU, attention, group_of
from .test_points import _device, check

AMPERE = find_target("cuda:sm_80")
SMALL_TARGET = evolve(SMALL_GPU, MAX_thread=64, MAX_shared=65536)
#: A machine whose blocks are a warpgroup.
WARPGROUP_TARGET = evolve(SMALL_GPU, MAX_thread=128, MAX_shared=131072)
TARGETS = {"m16": SMALL_TARGET, "m64": WARPGROUP_TARGET}
_SUPPRESSED_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def halves(*shape: int, dtype: DType = DType.F16, **attributes: Any) -> Graph:
    """Attention in halves: batch, heads, groups, queries, keys, both widths."""
    return attention(shape, dtype, **attributes)


CASES: dict[str, Graph] = {
    "one part": halves(1, 2, 2, 16, 48, 16, 16),
    "parts": halves(1, 1, 1, 32, 96, 16, 16),
    "odd": halves(1, 2, 1, 21, 67, 24, 40),
    "bf16": halves(2, 1, 1, 17, 70, 32, 32, dtype=DType.BF16),
    "causal": halves(1, 1, 1, 80, 80, 16, 16, causal=True),
    "long causal": halves(1, 1, 1, 150, 150, 16, 16, causal=True),
    "rows of nothing": halves(1, 1, 1, 70, 70, 16, 8, causal=True, offset=-40),
    "softcap": halves(1, 1, 1, 16, 49, 16, 16, softcap=5.0),
    "a bias": halves(1, 2, 2, 16, 49, 32, 32, mask=TensorType(DType.F16, (2, 16, 49))),
    "a mask": halves(2, 2, 1, 16, 70, 16, 16, mask=TensorType(DType.BOOL, (2, 1, 1, 70))),
}


def chain_points(group: FusedGroup, target: Any, count: int, seed: int = 5, kind: str = "m") -> list[Schedule]:
    """Return random legal points of a group as a chain in registers.

    `kind` begins the name of their instructions.
    """
    space, found = make_space(group, target), []
    for structure in space.templates:
        if not is_register_chain(structure.segments) or not structure.segments[2].mma.startswith(kind):
            continue
        numbers = np.random.default_rng(seed).permutation(structure.size)
        columns = columns_at(structure, numbers)
        batch = evaluate(space, structure, columns, 0, numbers)
        for n in np.flatnonzero(batch.legal)[:count]:
            values = {name: int(np.broadcast_to(column, numbers.shape)[n]) for name, column in columns.items()}
            found.append(schedule_of(group, structure, values, target.warp_size))
    return found


def compute(group: FusedGroup, schedule: Schedule, target: Any) -> None:
    """Assert that a point is legal, race-free, and computes its group."""
    assert check_schedule(group, schedule, target) == []
    kernel = lower(group, schedule, {}, target)
    assert check_barriers(kernel) == ()
    assert kernel_violations(kernel) == []
    assert kernel_violations(extract(kernel), threads=True) == []
    check(_device("opencl"), target, group, schedule)


@needs_opencl
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_points_compute_the_reference(name: str, kind: str) -> None:
    points = chain_points(group_of(CASES[name]), TARGETS[kind], 1, kind=kind)
    assert points
    for schedule in points:
        compute(group_of(CASES[name]), schedule, TARGETS[kind])


BULK_CASES: dict[str, Graph] = {
    "groups": halves(1, 4, 2, 128, 256, 64, 64),
    "tail": halves(1, 2, 2, 64, 200, 128, 64, dtype=DType.BF16),
    "one part": halves(1, 1, 1, 64, 96, 64, 64),
    "tail of rows": halves(1, 2, 2, 100, 256, 64, 64),
}


@needs_opencl
@pytest.mark.parametrize("name", BULK_CASES)
def test_parts_by_bulk_copies_compute_the_reference(name: str) -> None:
    group = group_of(BULK_CASES[name])
    points = [s for s in chain_points(group, WARPGROUP_TARGET, 99, kind="m64") if s.segments[2].reductions[0].tma]
    for schedule in points[:2]:
        kernel = lower(group, schedule, {}, WARPGROUP_TARGET)
        assert len(kernel.producer) == 1
        assert int(features_of(group, schedule, WARPGROUP_TARGET).shared) == sum(b.nbytes for b in kernel.shared)
        compute(group, schedule, WARPGROUP_TARGET)
    assert points


#: A machine whose blocks of a persistent grid take several tiles.
PERSISTENT_TARGET = evolve(WARPGROUP_TARGET, MAX_thread=256, NUM_SM=2)


@needs_opencl
@pytest.mark.parametrize("graph", [
    halves(1, 4, 2, 192, 256, 64, 64), halves(1, 1, 1, 200, 200, 64, 64, causal=True),
    halves(1, 1, 1, 256, 256, 64, 64, causal=True, offset=-70),
], ids=["whole", "causal", "rows of nothing"])  # fmt: skip
def test_blocks_that_take_several_tiles_compute_the_reference(graph: Graph) -> None:
    group = group_of(graph)
    points = chain_points(group, PERSISTENT_TARGET, 99, kind="m64")
    points = [s for s in points if s.segments[2].reductions[0].tma == PERSISTENT]
    kernels = [(s, lower(group, s, {}, PERSISTENT_TARGET)) for s in points]
    several = [schedule for schedule, kernel in kernels if kernel.turn.extent > 1]
    assert several
    for schedule in several[:2]:
        compute(group, schedule, PERSISTENT_TARGET)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw attention of any lengths, widths, heads and mask."""
    groups = draw(st.sampled_from((1, 1, 2)))
    heads, batch = groups * draw(st.sampled_from((1, 2))), draw(st.sampled_from((1, 1, 2)))
    rows, keys = draw(st.sampled_from((5, 16, 33, 49))), draw(st.sampled_from((16, 33, 64, 81, 130)))
    width, other = draw(st.sampled_from((8, 20, 32, 64))), draw(st.sampled_from((8, 24, 32, 65)))
    dtype = draw(st.sampled_from((DType.F16, DType.BF16)))
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"causal": True, "offset": draw(st.sampled_from((0, keys - rows, -3)))},
        {"mask": TensorType(DType.BOOL, (batch, 1, rows, keys))},
        {"mask": TensorType(dtype, (heads, 1, keys))},
        {"softcap": 3.0},
    )
    return halves(batch, heads, groups, rows, keys, width, other, dtype=dtype, **draw(st.sampled_from(kinds)))


@needs_opencl
@settings(max_examples=examples(3, 150), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(graphs(), st.integers(0, 99), st.sampled_from(sorted(TARGETS)))
def test_random_chains_compute_the_reference(graph: Graph, seed: int, kind: str) -> None:
    for schedule in chain_points(group_of(graph), TARGETS[kind], 1, seed, kind):
        compute(group_of(graph), schedule, TARGETS[kind])


@needs_cuda
@settings(max_examples=40, deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(graphs(), st.integers(0, 99))
def test_random_chains_compute_the_reference_cuda(graph: Graph, seed: int) -> None:
    for schedule in chain_points(group_of(graph), GPU, 2, seed):
        check(_device("cuda"), GPU, group_of(graph), schedule)


@pytest.mark.parametrize("name", CASES)
def test_shared_memory_is_what_was_counted(name: str) -> None:
    group = group_of(CASES[name])
    points = chain_points(group, GPU, 12)
    assert points
    for schedule in points:
        counted = sum(buffer.nbytes for buffer in lower(group, schedule, {}, GPU).shared)
        assert int(features_of(group, schedule, GPU).shared) == counted


def test_other_types_and_machines_have_no_such_chains() -> None:
    assert not list(chain_templates(group_of(attention((1, 1, 1, 32, 64, 16, 16))), GPU))
    assert not list(chain_templates(group_of(CASES["parts"]), find_target("cuda:sm_75")))
    assert register_chain(group_of(CASES["parts"])) is not None


SHAPES = [
    (64, 12, 12, 128, 128, 64, 64),
    (32, 12, 12, 197, 197, 64, 64),
    (1024, 3, 3, 49, 49, 32, 32),
    (1, 32, 8, 512, 512, 64, 64),
    (4, 16, 16, 4096, 4096, 128, 128),
    (2, 16, 16, 1000, 1000, 96, 64),
]


@needs_toolchain
@pytest.mark.parametrize("target", [GPU, AMPERE], ids=lambda target: target.arch)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chosen_chains_spill_nothing(shape: tuple[int, ...], target: Any) -> None:
    group = group_of(halves(*shape))
    best = choose(group, target)[0].schedule
    assert is_register_chain(best.segments)
    if target is AMPERE or shape[4] > 256:  # a short row is one part, whose rows overlap with nothing
        assert best.segments[2].reductions[0].mma.startswith("m64" if target is GPU else "m16")
    (found,) = compile_kernels([emit(extract(lower(group, best, {}, target)), "cuda")], target.arch)
    assert (found.spill_bytes, found.serialised) == (0, "")


def _drop_item(kernel: Kernel, kind: type, number: int) -> Kernel:
    """Return a kernel whose loop lacks one of its items of a kind."""
    (loop,) = (item for item in kernel.items if isinstance(item, Loop) and item.var.name == "step")
    dropped = [item for item in loop.body if isinstance(item, kind)][number]
    shorter = evolve(loop, body=tuple(item for item in loop.body if item is not dropped))
    return evolve(kernel, items=tuple(shorter if item is loop else item for item in kernel.items))


@pytest.mark.parametrize(("kind", "number", "reason"), [
    (Barrier, 0, "that phase s0r0fetch0 wrote"),
    (ProxyFence, 0, "without a fence for products"),
    (Wait, 0, "may still be copying"),
    (ProductWait, 0, "to which products may still be adding"),
    (ProductWait, 1, "which products may still be reading"),
])  # fmt: skip
def test_races_of_incomplete_loops_are_found(kind: type, number: int, reason: str) -> None:
    group = group_of(halves(1, 1, 1, 64, 256, 16, 16))
    points = chain_points(group, WARPGROUP_TARGET, 8, kind="m64")
    schedule = next(s for s in points if s.segments[2].reductions[0].stages == 2)
    kernel = lower(group, schedule, {}, WARPGROUP_TARGET)
    assert check_barriers(kernel) == ()
    assert any(reason in fault for fault in check_barriers(_drop_item(kernel, kind, number)))


def test_masks_cut_only_the_parts_that_they_reach() -> None:
    group = group_of(halves(1, 1, 1, 150, 150, 16, 16, causal=True))
    for kind, target in TARGETS.items():
        for schedule in chain_points(group, target, 3, kind=kind):
            masks = [p for p in phases(lower(group, schedule, {}, target).items) if "mask" in p.name]
            several = schedule.segments[1].reductions[0].dims[0].trips > 1
            assert masks and (not several or any(p.when for p in masks))


def test_scores_have_their_factor_in_the_exponents() -> None:
    group = group_of(halves(1, 1, 1, 64, 256, 16, 16, scale=0.3))
    (schedule, *_) = chain_points(group, SMALL_TARGET, 1)
    text = emit(extract(lower(group, schedule, {}, SMALL_TARGET)), "cuda").source
    assert f"{np.float32(0.3 * np.log2(np.e)):.7g}"[:7] in text
    assert "cuts_exp_half" not in text
