"""Kernels that are placed on the machine before the one in front of them has ended (programmatic dependent launch).

A kernel of ours for sm_90 and up begins by waiting for all that was launched before it to end (`griddepcontrol.wait`).
So an edge of a graph that leads to such a kernel need not hold its launch back: its blocks are placed as soon as those
in front have left, and only what is behind the wait follows the end, when all that was written can be read. Edges to
anything else, as to routines of libraries, stay as they are. Through a chain of kernels that all wait, each follows all
before it: one ends only when it has seen the end of the one before.

In a graph with branches, a kernel that follows several others is held back as usual, and so is nothing else: where one
is followed by several, each of them sees its end. (The port of an edge opens for all that leave it, and the wait is for
all grids that a grid depends on, says the programming guide.) So the end of a node is the end of all in front of it.

Kernels do not let the next one come any earlier (`griddepcontrol.launch_dependents`): its blocks would be placed where
there is room beside those that run, unevenly, and a small grid takes as long as its fullest SM. ResNet-50 in f16 at
batch 1 took 0.40 ms so on an H200, 0.31 ms with launches one after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from ...ir import WAITING
from .edges import calls_with_data

#: The architecture from which on kernels wait by themselves.
WAITING_ARCH = 90
#: The port of a kernel's node that opens when all of its blocks have left, `CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC`.
PORT = 1
#: Most edges of a graph that is changed: what the driver takes for each in a longer one is not known.
MOST = 4096
#: The driver's calls that it takes, there from CUDA 12.3 on; what it costs to go without is time only.
EDGES = ("cuGraphGetEdges", "cuGraphRemoveDependencies", "cuGraphAddDependencies")


def overlap_launches(graph: Any, cu: Any, checked: Callable[[tuple[Any, ...]], Any], arch: str) -> None:
    """Let kernels of a graph that wait by themselves be placed before the kernel in front of them has ended."""
    if _number(arch) < WAITING_ARCH or not hasattr(cu, "cuFuncGetName"):
        return
    calls = calls_with_data(cu, EDGES)
    if calls is None:
        return
    edges = list(_edges(graph, calls["cuGraphGetEdges"], checked))
    many = Counter(b for _, b in edges)
    alone = [(a, b) for a, b in edges if many[b] == 1]
    found = [(a, b) for a, b in alone if _is_kernel(a, cu, checked) and _waits(b, cu, checked)]
    if not found:
        return
    before, after = [a for a, _ in found], [b for _, b in found]
    plain = [cu.CUgraphEdgeData() for _ in found]
    early = [_early(cu) for _ in found]
    checked(calls["cuGraphRemoveDependencies"](graph, before, after, plain, len(found)))
    checked(calls["cuGraphAddDependencies"](graph, before, after, early, len(found)))


def _number(arch: str) -> int:
    digits = arch.removeprefix("sm_").rstrip("af")
    return int(digits) if digits.isdigit() else 0


def _edges(
    graph: Any, get: Callable[..., tuple[Any, ...]], checked: Callable[[tuple[Any, ...]], Any]
) -> Iterator[tuple[Any, Any]]:
    """Yield the nodes that edges without properties of their own connect."""
    count = _answer(get(graph, 0), checked)[-1]
    if 0 < count <= MOST:
        before, after, data, _ = _answer(get(graph, count), checked)
        plain = (not (d.type or d.from_port or d.to_port) for d in data)
        yield from ((a, b) for a, b, same in zip(before, after, plain, strict=True) if same)


def _answer(result: tuple[Any, ...], checked: Callable[[tuple[Any, ...]], Any]) -> tuple[Any, ...]:
    checked(result[:2])
    return result[1:]


def _is_kernel(node: Any, cu: Any, checked: Callable[[tuple[Any, ...]], Any]) -> bool:
    return bool(checked(cu.cuGraphNodeGetType(node)) == cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL)


def _waits(node: Any, cu: Any, checked: Callable[[tuple[Any, ...]], Any]) -> bool:
    """Whether a node is a kernel that waits for what was launched before it."""
    if not _is_kernel(node, cu, checked):
        return False
    name: bytes = checked(cu.cuFuncGetName(checked(cu.cuGraphKernelNodeGetParams(node)).func))
    return name.decode().endswith(WAITING)


def _early(cu: Any) -> Any:
    data = cu.CUgraphEdgeData()
    data.from_port, data.type = PORT, int(cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    return data
