"""Concurrent launches on a device that takes them in any legal order.

They compute the same as a launch sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends import BoundSequence, Launch, find_target, launch_all
from cuts.backends.opencl import OpenCLDevice
from cuts.compile import build_graph, load_spec
from cuts.ir import CompileOptions, Graph
from cuts.runtime import LaunchDependencies, Plan, Session, launch_dependencies, load_plan, make_concurrent, save_plan
from cuts.tests.amounts import examples
from cuts.tests.fuzz.graphs import graphs
from cuts.tests.needs import needs_opencl
from cuts.tests.operations import DIFFERENTIABLE, FLAT, SCALAR
from cuts.tests.operations_graph import bench_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ..fusion.build import graph, op
from .handmade import example_plan, random_x
from .test_hazards import some_order

TARGET = find_target("opencl")
USES = [*DIFFERENTIABLE, *SCALAR, *FLAT]


class AnyOrder(OpenCLDevice):
    """Device that launches branches in another legal order each time.

    A test may give the order.
    """

    order: Sequence[int] = ()
    recorded = 0

    def record(self, sequence: BoundSequence) -> Launch:
        launches, waits = sequence.launches, sequence.plan.waits
        if waits is None:
            return sequence.launch
        chance = Random(len(launches))
        self.recorded += 1

        def run() -> None:
            order = self.order or some_order(LaunchDependencies(tuple(map(tuple, waits)), ()), chance)
            launch_all([launches[number] for number in order])

        return run


def check(plan: Plan, inputs: Mapping[str, Any], times: int = 3) -> Plan | None:
    """Assert that branches leave the same bits in any order.

    Returns the plan in branches.
    """
    branched = make_concurrent(plan)
    if branched is None:
        return None
    wanted, device = Session(plan).run(inputs), AnyOrder(TARGET)
    session = Session(branched, device)
    for _ in range(times):
        for name, value in session.run(inputs).items():
            assert np.array_equal(wanted[name], value, equal_nan=value.dtype.kind == "f"), name
    assert device.recorded == 1
    return branched


@needs_opencl
@pytest.mark.parametrize("first", range(3))
def test_any_operations_in_branches_equal_the_sequence(first: int) -> None:
    """Recurrences, concatenations, views, scatters among them, in one plan."""
    bench = bench_of([use for use in USES[first::6] if use.op in ("lstm", "gru", "concat") or use in USES[first::12]])
    made = build_graph(bench.graph, bench.spec, TARGET, CompileOptions())
    branched = check(made.plan, {name: np.asarray(bench.inputs[name]) for name in made.plan.inputs})
    assert branched is not None
    assert branched.arena >= made.plan.arena


@needs_opencl
@settings(max_examples=examples(3, 200), deadline=None, phases=(Phase.explicit, Phase.generate))
@given(graphs(), st.sampled_from(("fusion", "no-fusion")))
def test_random_graphs_in_branches_equal_the_sequence(drawn: Graph, mode: Any) -> None:
    made = build_graph(drawn, load_spec([]), TARGET, CompileOptions(mode))
    check(made.plan, made.random_inputs(1))


def two_branches() -> Graph:
    """Return a value, two results of it, and their sum.

    The results are in parts of one buffer.
    """
    return graph(
        {"x": (8, 12), "w": (12, 12)},
        op("h", "relu", "x"),
        op("left", "matmul", "h", "w"),
        op("right", "matmul", "x", "w"),
        op("both", "concat", "left", "right", axis=1),
        op("y", "softmax", "both", axis=1),
        out="y",
    )


@needs_opencl
def test_each_edge_is_needed() -> None:
    """The check can fail.

    Launches in an order that breaks one edge compute another result.
    """
    made = build_graph(two_branches(), load_spec([]), TARGET, CompileOptions("no-fusion"))
    branched = check(made.plan, made.random_inputs(1))
    assert branched is not None
    waits = launch_dependencies(branched)
    assert sum(map(len, waits.direct)) >= branched.launch_count - 1
    for number, each in enumerate(waits.direct):
        for former in each:
            device = AnyOrder(TARGET)
            session, last = Session(branched, device), made.random_inputs(2)
            session.run(made.random_inputs(1))
            device.order = order_without(waits, former, number)
            wanted, found = Session(made.plan).run(last), session.run(last)
            assert any(not np.array_equal(wanted[name], found[name]) for name in wanted), (former, number)


def order_without(waits: LaunchDependencies, former: int, number: int) -> list[int]:
    """Return an order that respects all dependencies but one."""
    count = len(waits.direct)
    front = [n for n in range(count) if waits.before[number] >> n & 1 and not waits.before[n] >> former & 1]
    order = [*(n for n in front if n != former), number, former]
    return [*order, *(n for n in range(count) if n not in order)]


@needs_opencl
def test_other_devices_launch_branches_in_plan_order(tmp_path: Path) -> None:
    plan = example_plan()
    branched = make_concurrent(plan)
    assert branched is not None
    save_plan(branched, tmp_path / "plan")
    again = load_plan(tmp_path / "plan")
    assert again.branched and again.buffers == branched.buffers
    wanted, found = Session(plan).run({"x": random_x()}), Session(again).run({"x": random_x()})
    assert all(np.array_equal(wanted[name], found[name]) for name in wanted)


def test_a_chain_has_no_branches() -> None:
    plan = example_plan()
    first = evolve(plan, steps=plan.steps[:2], groups=plan.groups[:2])
    assert make_concurrent(first) is None
