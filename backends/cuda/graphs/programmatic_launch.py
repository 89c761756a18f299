"""Programmatic dependent launch: a kernel is placed before its predecessor ends.

A generated kernel for sm_90 and up begins with a wait for the end of all earlier launches (`griddepcontrol.wait`). So a
graph edge to such a kernel need not delay its launch: its blocks are placed as soon as the predecessor's blocks have
left, and only the code after the wait follows its end, when all written data can be read. Edges to other nodes, such as
routines of libraries, are unchanged. In a chain of kernels that all wait, each follows all earlier ones: one ends only
when it has seen the end of its predecessor.

In a graph with branches, a kernel with several predecessors is delayed as usual, and no other: where one has several
successors, each of them sees its end. (The port of an edge opens for all of its successors, and the wait is for all
grids that a grid depends on, according to the programming guide.) So the end of a node is the end of all its
predecessors.

Kernels do not trigger an earlier launch of their successors (`griddepcontrol.launch_dependents`): its blocks would be
placed unevenly where there is room beside the running ones, and a small grid takes as long as its fullest SM. That
makes ResNet-50 in f16 at batch 1 on an H200 slower by 30 percent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ....ir import WAITING_SUFFIX
from .graph_edges import calls_with_data

#: First architecture whose kernels contain the wait.
MIN_ARCH = 90
#: The port of a kernel's node that opens when all of its blocks have left, `CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC`.
PROGRAMMATIC_PORT = 1
#: Limit of the edges of a graph that is changed; the driver's time for longer ones is unknown.
MAX_EDGES = 4096
#: Required driver calls, present from CUDA 12.3 on; without them launches are only slower.
EDGE_CALLS = ("cuGraphGetEdges", "cuGraphRemoveDependencies", "cuGraphAddDependencies")


def enable_programmatic_launch(
    graph: Any,
    cu: Any,
    checked: Callable[[tuple[Any, ...]], Any],
    arch: str,
    own: Sequence[tuple[Any, Any]] | None = None,
) -> None:
    """Let kernels of a graph that wait be placed before predecessors end.

    Only its `own` edges change where others have another owner.
    """
    if _number(arch) < MIN_ARCH or not hasattr(cu, "cuFuncGetName"):
        return
    calls = calls_with_data(cu, EDGE_CALLS)
    if calls is None:
        return
    edges = list(_edges(graph, calls["cuGraphGetEdges"], checked) if own is None else own)
    many = Counter(b for _, b in edges)
    alone = [(a, b) for a, b in edges if many[b] == 1]
    found = [(a, b) for a, b in alone if _is_kernel(a, cu, checked) and _waits(b, cu, checked)]
    if not 0 < len(found) <= MAX_EDGES:
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
    """Yield the nodes that edges without properties connect."""
    count = _answer(get(graph, 0), checked)[-1]
    if 0 < count <= MAX_EDGES:
        before, after, data, _ = _answer(get(graph, count), checked)
        plain = (not (d.type or d.from_port or d.to_port) for d in data)
        yield from ((a, b) for a, b, same in zip(before, after, plain, strict=True) if same)


def _answer(result: tuple[Any, ...], checked: Callable[[tuple[Any, ...]], Any]) -> tuple[Any, ...]:
    checked(result[:2])
    return result[1:]


def _is_kernel(node: Any, cu: Any, checked: Callable[[tuple[Any, ...]], Any]) -> bool:
    return bool(checked(cu.cuGraphNodeGetType(node)) == cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL)


def _waits(node: Any, cu: Any, checked: Callable[[tuple[Any, ...]], Any]) -> bool:
    """Return whether a node is a kernel that waits for earlier launches."""
    if not _is_kernel(node, cu, checked):
        return False
    name: bytes = checked(cu.cuFuncGetName(checked(cu.cuGraphKernelNodeGetParams(node)).func))
    return name.decode().endswith(WAITING_SUFFIX)


def _early(cu: Any) -> Any:
    data = cu.CUgraphEdgeData()
    data.from_port, data.type = PROGRAMMATIC_PORT, int(cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    return data
