"""Launches recorded in branches: predecessors of each node, and programmatic launches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from cuts.backends import KernelCall, SequencePlan
from cuts.backends.cuda.bindings import BindingsDriver, ModuleFunction
from cuts.backends.cuda.launch_graph import CudaLaunchSequence
from cuts.ir import KernelFunction
from cuts.tests.backends.fake_driver import FakeDriver
from cuts.tests.needs import needs_c_compiler
from hypothesis import given
from hypothesis import strategies as st

pytestmark = needs_c_compiler()


def record_launches(
    names: Sequence[str], waits: Sequence[Sequence[int]], arch: str = "sm_90", old: bool = False
) -> dict[tuple[str, str], bool]:
    """Return the recorded edges of kernels, and whether each is early.

    Each kernel follows those that it waits for. The kernel "empty" has no blocks.
    """
    attributes = {"COMPUTE_CAPABILITY_MAJOR": int(arch[3]), "COMPUTE_CAPABILITY_MINOR": int(arch[4])}
    driver = FakeDriver({}, attributes, old)
    driver.cuda.set(int(arch[3:5]))
    bindings = BindingsDriver(driver)
    bindings.retain(0)
    kernels = [KernelFunction(name, "cuda", "", (int(name != "empty"), 1, 1), (32, 1, 1), ()) for name in names]
    calls = tuple(KernelCall(number, ((),)) for number in range(len(names)))
    plan = SequencePlan(
        (), 0, calls, tuple((number, 0) for number in range(len(names))), waits=tuple(map(tuple, waits))
    )
    loaded = [ModuleFunction(driver.cuda.define(name, lambda: None, 0), None) for name in names]
    made = CudaLaunchSequence(bindings, arch, plan, kernels, loaded, lambda: pytest.fail("no routine"))
    made.replay([], 7, keep=plan)()
    assert driver.cuda.lines("run on") == ["run on 0x7"]
    return driver.cuda.edges()


def test_each_launch_follows_what_it_waits_for() -> None:
    edges = record_launches(["a_waits", "b_waits", "c_waits", "d_waits"], [(), (), (0,), (1, 2)])
    assert set(edges) == {("a_waits", "c_waits"), ("b_waits", "d_waits"), ("c_waits", "d_waits")}
    early = {pair for pair, is_early in edges.items() if is_early}
    assert early == {("a_waits", "c_waits")}, "what follows two is held back by both"


def test_launches_after_an_empty_one_follow_its_predecessors() -> None:
    edges = record_launches(["gemm", "empty", "a_waits"], [(), (0,), (1,)])
    assert edges == {("gemm", "E"): False, ("E", "a_waits"): False}


@st.composite
def branches(draw: st.DrawFn) -> tuple[list[str], list[list[int]]]:
    """Draw kinds of launches, and the launches that each waits for."""
    kinds = draw(st.lists(st.sampled_from(("waits", "gemm", "copy")), min_size=1, max_size=9))
    names = [f"kernel{n}_waits" if kind == "waits" else f"{kind}{n}" for n, kind in enumerate(kinds)]
    sets = [draw(st.sets(st.integers(0, n - 1), max_size=3)) if n else set() for n in range(len(names))]
    return names, [sorted(each) for each in sets]


@given(branches())
def test_memory_is_untouched_until_all_dependencies_end(
    case: tuple[list[str], list[list[int]]],
) -> None:
    """Law of graphs with branches.

    A node begins when its predecessors have ended, or, after an early edge, when that predecessor has begun. A node
    that waits touches memory when its predecessors have ended, and ends after them.
    """
    names, waits = case
    edges = record_launches(names, waits)
    ended: dict[str, set[str]] = {}  # the nodes that have ended when a node has
    began: dict[str, set[str]] = {}  # the nodes that have ended when a node begins
    needed: dict[str, set[str]] = {}
    for name, each in zip(names, waits, strict=True):
        front = [names[number] for number in each]
        needed[name] = set().union(*({former} | needed[former] for former in front))
        early = {former for former in front if edges[former, name]}
        held = set().union(*({former} | ended[former] for former in front if former not in early))
        began[name] = held.union(*(began[former] for former in early))
        seen = began[name].union(*({former} | ended[former] for former in early))
        touched = seen if name.endswith("_waits") else began[name]
        ended[name] = touched
        assert needed[name] <= touched, f"{name} may touch memory before {needed[name] - touched} have ended"


def test_drivers_without_edge_data_record_branches() -> None:
    edges = record_launches(["a_waits", "b_waits", "c_waits"], [(), (0,), (0,)], old=True)
    assert edges == {("a_waits", "b_waits"): False, ("a_waits", "c_waits"): False}
