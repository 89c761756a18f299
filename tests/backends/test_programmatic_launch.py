"""Launches that are placed before their predecessor ends: waits and graph edges."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cuts.backends.cuda.graphs.programmatic_launch import MAX_EDGES, PROGRAMMATIC_PORT, enable_programmatic_launch
from hypothesis import given
from hypothesis import strategies as st

from ..needs import needs_toolchain
from .test_arithmetic import machine_code, needs_disassembler

GOLDEN = Path(__file__).parent / "golden"
#: Instructions that read or write memory that other kernels know.
MEMORY = re.compile(r"\b(LDG|STG|LDGSTS|LD|ST|RED|ATOMG?)\b")


@needs_toolchain
@needs_disassembler
@pytest.mark.parametrize("file", sorted(GOLDEN.glob("test_kernel-*-cuda.txt")), ids=lambda f: f.stem)
def test_kernels_wait_before_they_touch_memory(file: Path, tmp_path: Path) -> None:
    before, _, rest = machine_code(file.read_text(), tmp_path).partition("ACQBULK")
    assert not MEMORY.search(before) and MEMORY.search(rest) and "PREEXIT" not in rest


class Graph:
    """Driver with one graph.

    Nodes are names of kernels, or "copy"; edges have a port and a type.
    """

    CUDA_VERSION = 13000
    CUgraphEdgeData = SimpleNamespace
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL="kernel")
    CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)

    def __init__(self, *nodes: str) -> None:
        self.edges: list[tuple[str, str, tuple[int, int]]] = [(a, b, (0, 0)) for a, b in pairwise(nodes)]

    def cuDriverGetVersion(self) -> tuple[int, int]:
        return 0, 13000

    def cuGraphGetEdges(self, graph: Any, count: int) -> tuple[Any, ...]:
        if not count:
            return 0, [], [], [], len(self.edges)
        data = [SimpleNamespace(from_port=p, to_port=0, type=t) for _, _, (p, t) in self.edges]
        return 0, [a for a, _, _ in self.edges], [b for _, b, _ in self.edges], data, len(self.edges)

    def cuGraphNodeGetType(self, node: str) -> tuple[int, str]:
        return 0, "copy" if node.startswith("copy") else "kernel"

    def cuGraphKernelNodeGetParams(self, node: str) -> tuple[int, Any]:
        return 0, SimpleNamespace(func=node)

    def cuFuncGetName(self, function: str) -> tuple[int, bytes]:
        return 0, function.encode()

    def cuGraphRemoveDependencies(self, graph: Any, before: Any, after: Any, data: Any, count: int) -> tuple[int]:
        gone = set(zip(before, after, strict=True))
        self.edges = [e for e in self.edges if e[:2] not in gone]
        return (0,)

    def cuGraphAddDependencies(self, graph: Any, before: Any, after: Any, data: Any, count: int) -> tuple[int]:
        self.edges += [(a, b, (d.from_port, d.type)) for a, b, d in zip(before, after, data, strict=True)]
        return (0,)


class OlderGraph(Graph):
    """The same by the bindings for CUDA 12.

    Calls of the plain names take no data of edges.
    """

    CUDA_VERSION = 12090
    cuGraphGetEdges_v2 = Graph.cuGraphGetEdges
    cuGraphRemoveDependencies_v2 = Graph.cuGraphRemoveDependencies
    cuGraphAddDependencies_v2 = Graph.cuGraphAddDependencies

    def cuGraphGetEdges(self, graph: Any, count: int) -> tuple[Any, ...]:
        raise AssertionError("it tells no data of edges")

    def cuGraphRemoveDependencies(self, *given: Any) -> tuple[int]:
        raise AssertionError("it takes no data of edges")

    cuGraphAddDependencies = cuGraphRemoveDependencies


class OldDriver(OlderGraph):
    """Bindings that know calls which the driver has not."""

    def cuDriverGetVersion(self) -> tuple[int, int]:
        return 0, 12020


def early_edges(*nodes: str, arch: str = "sm_90", driver: type[Graph] = Graph) -> set[tuple[str, str]]:
    """The edges of a chain of nodes that hold no launch back."""
    graph = driver(*nodes)
    enable_programmatic_launch("graph", graph, lambda result: result[1] if len(result) > 1 else None, arch)
    assert {e[:2] for e in graph.edges} == set(pairwise(nodes)), "every edge is still there"
    return {(a, b) for a, b, data in graph.edges if data == (PROGRAMMATIC_PORT, 1)}


@pytest.mark.parametrize(("driver", "found"), [(OlderGraph, {("a_waits", "b_waits")}), (OldDriver, set())])
def test_older_driver_bindings_use_other_call_names(driver: type[Graph], found: set[Any]) -> None:
    assert early_edges("a_waits", "b_waits", driver=driver) == found


def test_edges_between_own_kernels_delay_no_launch() -> None:
    assert early_edges("a_waits", "b_waits", "c_waits") == {("a_waits", "b_waits"), ("b_waits", "c_waits")}


def test_what_does_not_wait_follows_the_end() -> None:
    assert early_edges("a_waits", "gemm", "b_waits") == {("gemm", "b_waits")}
    assert early_edges("copy", "a_waits", "copy", "b_waits") == set()


@given(st.lists(st.sampled_from(("waits", "gemm", "copy")), min_size=1, max_size=12))
def test_memory_is_untouched_until_all_predecessors_end(kinds: list[str]) -> None:
    """Law of programmatic launches.

    A read follows the write and an overwrite follows the read, since a node touches nothing until all its predecessors
    end. A node that does not wait touches memory from its beginning; an early edge lets a node begin as soon as its
    predecessor has begun.
    """
    nodes = [f"kernel{number}_waits" if kind == "waits" else f"{kind}{number}" for number, kind in enumerate(kinds)]
    early = early_edges(*nodes)
    began: set[int] = set()  # the nodes whose ends come before the beginning of this one
    for number, node in enumerate(nodes):
        held = number and (nodes[number - 1], node) not in early
        began = set(range(number)) if held else began
        seen = set(range(number)) if node.endswith("_waits") else began
        assert seen == set(range(number)), f"{node} may touch memory before {set(range(number)) - seen} have ended"


def test_a_long_recording_is_left_as_it_is() -> None:
    assert len(early_edges(*(f"{n}_waits" for n in range(MAX_EDGES + 1)))) == MAX_EDGES
    assert early_edges(*(f"{n}_waits" for n in range(MAX_EDGES + 2))) == set()


def test_older_machines_and_drivers_launch_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert early_edges("a_waits", "b_waits", arch="sm_89") == set()
    assert early_edges("a_waits", "b_waits", arch="sm_90a") == {("a_waits", "b_waits")}
    monkeypatch.delattr(Graph, "cuFuncGetName")
    assert early_edges("a_waits", "b_waits") == set()
