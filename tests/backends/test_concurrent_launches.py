"""Launches recorded in branches: predecessors of each node, and programmatic launches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from cuts.backends import KernelCall, SequencePlan
from cuts.backends.cuda.bindings import BindingsDriver, ModuleFunction
from cuts.backends.cuda.graph_edges import PROGRAMMATIC_PORT
from cuts.backends.cuda.launch_graph import CudaLaunchSequence
from cuts.ir import KernelFunction
from cuts.ir.errors import BackendError
from hypothesis import given
from hypothesis import strategies as st


class Recorder:
    """Driver that records a graph.

    Nodes are texts, edges have a port and a type.
    """

    CUDA_VERSION = 13000
    CUgraphEdgeData = staticmethod(partial(SimpleNamespace, from_port=0, to_port=0, type=0))
    CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)
    CUDA_KERNEL_NODE_PARAMS = SimpleNamespace

    def __init__(self) -> None:
        self.edges: dict[tuple[str, str], tuple[int, int]] = {}
        self.launched = 0

    def cuDriverGetVersion(self) -> tuple[int, int]:
        return 0, 13000

    def cuCtxPushCurrent(self, context: int) -> tuple[int]:
        return (0,)

    def cuCtxPopCurrent(self) -> tuple[int, int]:
        return 0, 16

    def cuGraphExecDestroy(self, executable: str) -> tuple[int]:
        return (0,)

    cuGraphDestroy = cuGraphExecDestroy

    def cuGraphCreate(self, flags: int) -> tuple[int, str]:
        return 0, "graph"

    def cuGraphAddKernelNode(self, graph: str, before: list[str] | None, count: int, params: Any) -> tuple[int, str]:
        assert len(set(before or ())) == count
        self.edges |= {(former, params.func): (0, 0) for former in before or ()}
        return 0, params.func

    def cuGraphAddDependencies(self, graph: str, before: Any, after: Any, data: Any, count: int) -> tuple[int]:
        self.edges |= {(a, b): (d.from_port, d.type) for a, b, d in zip(before, after, data, strict=True)}
        return (0,)

    def cuGraphInstantiate(self, graph: str, flags: int) -> tuple[int, str]:
        return 0, "executable"

    def cuGraphLaunch(self, executable: str, stream: int) -> tuple[int]:
        self.launched += 1
        return (0,)


def record_launches(
    names: Sequence[str], waits: Sequence[Sequence[int]], driver: Recorder | None = None, arch: str = "sm_90"
) -> Recorder:
    """Record kernels, each after those that it waits for.

    The kernel "empty" has no blocks.
    """
    recorder = driver or Recorder()
    kernels = [KernelFunction(name, "cuda", "", (int(name != "empty"), 1, 1), (32, 1, 1), ()) for name in names]
    calls = tuple(KernelCall(number, ((),)) for number in range(len(names)))
    plan = SequencePlan(
        (), 0, calls, tuple((number, 0) for number in range(len(names))), waits=tuple(map(tuple, waits))
    )
    loaded = [ModuleFunction(name, None) for name in names]
    made = CudaLaunchSequence(BindingsDriver(recorder), arch, plan, kernels, loaded, lambda: pytest.fail("no routine"))
    replay = made.replay([], 7, keep=plan)
    replay()
    assert recorder.launched == 1
    return recorder


def test_each_launch_follows_what_it_waits_for() -> None:
    driver = record_launches(["a_waits", "b_waits", "c_waits", "d_waits"], [(), (), (0,), (1, 2)])
    assert set(driver.edges) == {("a_waits", "c_waits"), ("b_waits", "d_waits"), ("c_waits", "d_waits")}
    early = {pair for pair, data in driver.edges.items() if data == (PROGRAMMATIC_PORT, 1)}
    assert early == {("a_waits", "c_waits")}, "what follows two is held back by both"


def test_launches_after_an_empty_one_follow_its_predecessors() -> None:
    driver = record_launches(["gemm", "empty", "a_waits"], [(), (0,), (1,)])
    assert set(driver.edges) == {("gemm", "a_waits")}


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
    driver = record_launches(names, waits)
    ended: dict[str, set[str]] = {}  # the nodes that have ended when a node has
    began: dict[str, set[str]] = {}  # the nodes that have ended when a node begins
    needed: dict[str, set[str]] = {}
    for name, each in zip(names, waits, strict=True):
        front = [names[number] for number in each]
        needed[name] = set().union(*({former} | needed[former] for former in front))
        early = {former for former in front if driver.edges[former, name] == (PROGRAMMATIC_PORT, 1)}
        held = set().union(*({former} | ended[former] for former in front if former not in early))
        began[name] = held.union(*(began[former] for former in early))
        seen = began[name].union(*({former} | ended[former] for former in early))
        touched = seen if name.endswith("_waits") else began[name]
        ended[name] = touched
        assert needed[name] <= touched, f"{name} may touch memory before {needed[name] - touched} have ended"


def test_drivers_without_edge_data_record_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "CUDA_VERSION", 12060)
    driver = record_launches(["a_waits", "b_waits", "c_waits"], [(), (0,), (0,)])
    assert driver.edges == {("a_waits", "b_waits"): (0, 0), ("a_waits", "c_waits"): (0, 0)}


def test_a_failing_recording_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Recorder()
    monkeypatch.setattr(Recorder, "cuGetErrorName", lambda self, code: (0, b"CUDA_ERROR_ILLEGAL_STATE"), raising=False)
    monkeypatch.setattr(driver, "cuGraphAddKernelNode", lambda *_: (401,))
    with pytest.raises(BackendError, match="CUDA_ERROR_ILLEGAL_STATE"):
        record_launches(["a"], [()], driver)
