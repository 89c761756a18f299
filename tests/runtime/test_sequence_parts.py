"""Launch sequences in parts: memory that each part needs, and results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuts.backends import BlockAddress, KernelCall, SequencePlan, find_target
from cuts.compile import build_graph
from cuts.ir import CompileOptions
from cuts.runtime import ExternalSession, Plan, Session, make_concurrent
from cuts.runtime.placement import PlacedPlan, sequence_parts
from cuts.runtime.placement.sequence_parts import LaunchMemory, divide_sequence, launch_memory
from cuts.tests.needs import needs_opencl
from cuts.tests.operations_graph import bench_of

from .handmade import example_plan
from .test_external_buffers import USES, Arena, opencl

MIB = 1 << 20


def plan_over(sizes: tuple[int, ...], launches: list[tuple[int, ...]], inputs: int) -> PlacedPlan:
    """Return a plan over blocks of MiB, and the blocks of launches."""
    calls = tuple(KernelCall(n % 2, (tuple(map(BlockAddress, used)),)) for n, used in enumerate(launches))
    blocks = (0, 0, *(size * MIB for size in sizes))
    sequence = SequencePlan(blocks, 2, calls, tuple((n, 0) for n in range(len(calls))))
    return PlacedPlan(example_plan(), sequence, {}, moving=tuple("abcdefgh"[:inputs]))


def test_outputs_take_the_memory_of_inputs() -> None:
    """Two inputs of 40 MiB, two outputs of as much."""
    placed = plan_over((40, 40, 40, 40), [(2,), (2, 3), (4,), (4, 5)], 2)
    first, second = divide_sequence(placed, launch_memory(placed, {}).starts())
    assert (first.allocated, first.released) == ((), (0, 1))
    assert (second.allocated, second.released) == ((0, 1), ())
    assert [len(part.sequence.order) for part in (first, second)] == [2, 2]
    assert first.kernels == (0, 1) and [call.kernel for call in second.sequence.calls] == [0, 1]


@pytest.mark.parametrize(
    ("given", "made", "inside", "expected"),
    [
        ([8, 8, 0, 0], [0, 0, 0, 8], [], [0, 2]),
        ([0, 0, 0, 0], [0, 0, 0, 8], [(0, 1, 8)], [0, 2]),
        ([0, 0, 0, 0], [1, 1, 1, 8], [(0, 0, 8), (1, 3, 2)], [0, 1]),
        ([8, 8, 8, 8], [0, 0, 8, 8], [(0, 3, 8)], [0]),
        ([0, 0, 0, 0], [0, 0, 8, 8], [(1, 2, 8)], [0]),
    ],
    ids=["inputs", "intermediates", "both kinds", "all to the end", "all at once"],
)
def test_parts_begin_where_memory_is_free(
    given: list[int], made: list[int], inside: list[tuple[int, int, int]], expected: list[int]
) -> None:
    table = np.array(inside, np.int64).reshape(-1, 3)
    assert LaunchMemory(np.array(given), np.array(made), table).starts() == expected


@needs_opencl
def test_small_plans_stay_whole() -> None:
    bench = bench_of(USES[:4])
    plan = build_graph(bench.graph, bench.spec, find_target("opencl"), CompileOptions()).plan
    session = ExternalSession(plan, opencl(), (), Arena().new)
    assert len(session.parts) == 1 and not session.layout.temporary


def run_in_parts(plan: Plan, inputs: dict[str, Any], held: tuple[str, ...]) -> tuple[int, dict[str, Any]]:
    """Return the number of parts, and the outputs; released inputs are overwritten."""
    arena = Arena()
    session = ExternalSession(plan, opencl(), held, arena.new)
    layout = session.layout
    fixed = session.fixed_addresses(
        [arena.new(inputs[n].nbytes, inputs[n]) for n in layout.held], arena.new(layout.sizes[1])
    )
    given = [arena.new(inputs[n].nbytes, inputs[n]) for n in layout.moving]
    made = [0] * len(layout.fresh)
    for number, part in enumerate(session.parts):
        for position in part.allocated:
            made[position] = arena.new(layout.sizes[layout.fresh[position]])
        session.launch(fixed, [*given, *made], 0, number)
        for position in part.finished:
            arena.bytes_at(made[position])[...] = 0x5A
        returned = {view.block for view in layout.output_views}
        for position in part.released:
            if layout.fresh[0] - len(layout.moving) + position not in returned:
                arena.bytes_at(given[position])[...] = 0x5A
    blocks, found = [*fixed, *given, *made], {}
    for view in layout.output_views:
        elements = arena.bytes_at(blocks[view.block]).view(view.dtype.numpy)[view.offset :]
        strides = tuple(s * view.dtype.size for s in view.strides)
        found[view.name] = np.lib.stride_tricks.as_strided(elements, view.shape, strides).copy()
    assert arena.is_untouched()
    assert layout.temporary and not layout.sizes[1]
    return len(session.parts), found


@needs_opencl
@pytest.mark.parametrize("branched", [False, True])
def test_parts_give_the_results_of_an_arena(branched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_parts, "MIN_SAVED_BYTES", 1)
    monkeypatch.setattr(sequence_parts, "MIN_SAVED_PART", 0.0)
    bench = bench_of([use for use in USES[::24] if not use.op.endswith("lstm")])
    plan = build_graph(bench.graph, bench.spec, find_target("opencl"), CompileOptions()).plan
    inputs = {name: np.asarray(bench.inputs[name]) for name in plan.inputs}
    expected = Session(plan).run(inputs)
    chosen = make_concurrent(plan) if branched else plan
    assert chosen is not None
    count, found = run_in_parts(chosen, inputs, plan.inputs[::4])
    assert 1 < count <= sequence_parts.MAX_PARTS
    for name, value in expected.items():
        assert np.array_equal(found[name], value, equal_nan=value.dtype.kind == "f"), name
