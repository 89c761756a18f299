"""Launches recorded in branches: predecessors of each node, and programmatic launches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from cuts.backends.cuda.graphs import graph as cuda_graph
from cuts.backends.cuda.graphs.graph import capture_branches, capture_graph
from cuts.backends.cuda.graphs.programmatic_launch import PROGRAMMATIC_PORT
from cuts.ir.errors import BackendError
from hypothesis import given
from hypothesis import strategies as st


class Recorder:
    """Driver that records on one stream.

    Nodes are texts, edges have a port and a type.
    """

    CUDA_VERSION = 13000
    CUgraphEdgeData = staticmethod(partial(SimpleNamespace, from_port=0, to_port=0, type=0))
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL="kernel")
    CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
    CUstreamUpdateCaptureDependencies_flags = SimpleNamespace(CU_STREAM_SET_CAPTURE_DEPENDENCIES=1)
    CUstream = int

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.edges: dict[tuple[str, str], tuple[int, int]] = {}
        self.behind: list[str] = []
        self.launched = 0

    def cuDriverGetVersion(self) -> tuple[int, int]:
        return 0, 13000

    def record(self, name: str) -> None:
        """Launch something on the stream."""
        self.nodes.append(name)
        self.edges |= {(former, name): (0, 0) for former in self.behind}
        self.behind = [name]

    def cuStreamBeginCapture(self, stream: int, mode: int) -> tuple[int]:
        return (0,)

    def cuStreamEndCapture(self, stream: int) -> tuple[int, str]:
        return 0, "graph"

    def cuStreamGetCaptureInfo(self, stream: int) -> tuple[Any, ...]:
        data = [self.CUgraphEdgeData() for _ in self.behind]
        return 0, "active", 1, "graph", list(self.behind), data, len(self.behind)

    def cuStreamUpdateCaptureDependencies(
        self, stream: int, nodes: list[str], data: list[Any], count: int, flags: int
    ) -> tuple[int]:
        assert len(set(nodes)) == len(data) == count > 0 and flags == 1
        self.behind = list(nodes)
        return (0,)

    def cuGraphAddEmptyNode(self, graph: str, before: Any, count: int) -> tuple[int, str]:
        self.nodes.append("begin")
        return 0, "begin"

    def cuGraphGetEdges(self, graph: str, count: int) -> tuple[Any, ...]:
        pairs = list(self.edges)
        data = [self.CUgraphEdgeData(from_port=p, type=t) for p, t in self.edges.values()]
        return 0, [a for a, _ in pairs], [b for _, b in pairs], data, len(pairs)

    def cuGraphRemoveDependencies(self, graph: str, before: Any, after: Any, data: Any, count: int) -> tuple[int]:
        for pair in zip(before, after, strict=True):
            del self.edges[pair]
        return (0,)

    def cuGraphAddDependencies(self, graph: str, before: Any, after: Any, data: Any, count: int) -> tuple[int]:
        self.edges |= {(a, b): (d.from_port, d.type) for a, b, d in zip(before, after, data, strict=True)}
        return (0,)

    def cuGraphNodeGetType(self, node: str) -> tuple[int, str]:
        return 0, "other" if node.startswith(("begin", "copy")) else "kernel"

    def cuGraphKernelNodeGetParams(self, node: str) -> tuple[int, Any]:
        return 0, SimpleNamespace(func=node)

    def cuFuncGetName(self, function: str) -> tuple[int, bytes]:
        return 0, function.encode()

    def cuGraphInstantiate(self, graph: str, flags: int) -> tuple[int, str]:
        return 0, "executable"

    def cuGraphDestroy(self, graph: str) -> tuple[int]:
        return (0,)

    def cuGraphLaunch(self, executable: str, stream: int) -> tuple[int]:
        self.launched += 1
        return (0,)


def record_launches(names: Sequence[Sequence[str]], waits: Sequence[Sequence[int]]) -> Recorder:
    """Record launches of some nodes each, after those that they wait for."""
    driver = Recorder()

    def launch(each: Sequence[str]) -> None:
        for name in each:
            driver.record(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graph, "import_module", lambda name: driver)
        replay = capture_branches([partial(launch, each) for each in names], waits, 7, "sm_90")
    assert replay is not None
    replay()
    assert driver.launched == 1
    return driver


def test_each_launch_follows_what_it_waits_for() -> None:
    driver = record_launches([["a_waits"], ["b_waits"], ["c_waits"], ["d_waits"]], [(), (), (0,), (1, 2)])
    assert set(driver.edges) == {
        ("begin", "a_waits"),
        ("begin", "b_waits"),
        ("a_waits", "c_waits"),
        ("b_waits", "d_waits"),
        ("c_waits", "d_waits"),
    }
    early = {pair for pair, data in driver.edges.items() if data == (PROGRAMMATIC_PORT, 1)}
    assert early == {("a_waits", "c_waits")}, "what follows two is held back by both"


def test_multi_node_routines_and_empty_launches_are_followed() -> None:
    driver = record_launches([["copy1", "gemm"], [], ["a_waits"]], [(), (0,), (1,)])
    assert set(driver.edges) == {("begin", "copy1"), ("copy1", "gemm"), ("gemm", "a_waits")}


@st.composite
def branches(draw: st.DrawFn) -> tuple[list[list[str]], list[list[int]]]:
    """Draw kinds of launches, and the launches that each waits for."""
    kinds = draw(st.lists(st.sampled_from(("waits", "gemm", "copy")), min_size=1, max_size=9))
    names = [f"kernel{n}_waits" if kind == "waits" else f"{kind}{n}" for n, kind in enumerate(kinds)]
    sets = [draw(st.sets(st.integers(0, n - 1), max_size=3)) if n else set() for n in range(len(names))]
    return [[name] for name in names], [sorted(each) for each in sets]


@given(branches())
def test_memory_is_untouched_until_all_dependencies_end(
    case: tuple[list[list[str]], list[list[int]]],
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
    for (name,), each in zip(names, waits, strict=True):
        front = [names[number][0] for number in each]
        needed[name] = set().union(*({former} | needed[former] for former in front))
        early = {former for former in front if driver.edges[former, name] == (PROGRAMMATIC_PORT, 1)}
        held = set().union(*({former} | ended[former] for former in front if former not in early))
        began[name] = held.union(*(began[former] for former in early))
        seen = began[name].union(*({former} | ended[former] for former in early))
        touched = seen if name.endswith("_waits") else began[name]
        ended[name] = touched
        assert needed[name] <= touched, f"{name} may touch memory before {needed[name] - touched} have ended"


def test_drivers_without_the_calls_record_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Recorder()
    monkeypatch.setattr(cuda_graph, "import_module", lambda name: driver)
    monkeypatch.setattr(Recorder, "CUDA_VERSION", 12060)
    assert capture_branches([], [], 7, "sm_90") is None
    assert capture_graph(lambda: driver.record("a_waits"), 7, "sm_90") is not None


def test_cuda_12_bindings_record_branches_by_newer_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(Recorder):
        CUDA_VERSION = 12090
        cuStreamGetCaptureInfo_v3 = Recorder.cuStreamGetCaptureInfo
        cuStreamUpdateCaptureDependencies_v2 = Recorder.cuStreamUpdateCaptureDependencies

    driver = Older()
    monkeypatch.setattr(Older, "cuStreamGetCaptureInfo", None)
    monkeypatch.setattr(cuda_graph, "import_module", lambda name: driver)
    assert capture_branches([partial(driver.record, name) for name in "abc"], [(), (), (0, 1)], 7, "sm_80") is not None
    assert {edge for edge in driver.edges if edge[1] == "c"} == {("a", "c"), ("b", "c")}


def test_a_failing_recording_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Recorder()
    monkeypatch.setattr(cuda_graph, "import_module", lambda name: driver)
    monkeypatch.setattr(Recorder, "cuGetErrorName", lambda self, code: (0, b"CUDA_ERROR_ILLEGAL_STATE"), raising=False)
    monkeypatch.setattr(driver, "cuStreamUpdateCaptureDependencies", lambda *_: (401,))
    with pytest.raises(BackendError, match="CUDA_ERROR_ILLEGAL_STATE"):
        capture_branches([lambda: None], [()], 7, "sm_90")
