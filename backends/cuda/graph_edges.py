"""Edges of CUDA graphs: programmatic launches, and extension of captures.

A generated kernel for sm_90 and up begins with a wait for the end of all earlier launches (`griddepcontrol.wait`). So a
graph edge to such a kernel need not delay its launch: its blocks are placed as soon as the predecessor's blocks have
left, and only the code after the wait follows its end, when all written data can be read. Edges to other nodes, such as
routines of libraries, are plain. In a chain of kernels that all wait, each follows all earlier ones: one ends only when
it has seen the end of its predecessor.

In a graph with branches, a kernel with several predecessors is delayed as usual, and no other: where one has several
successors, each of them sees its end. (The port of an edge opens for all of its successors, and the wait is for all
grids that a grid depends on, according to the programming guide.) So the end of a node is the end of all its
predecessors.

Kernels do not trigger an earlier launch of their successors (`griddepcontrol.launch_dependents`): its blocks would be
placed unevenly where there is room beside the running ones, and a small grid takes as long as its fullest SM. That
makes ResNet-50 in f16 at batch 1 on an H200 slower by 30 percent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..compilers import architecture_number

#: First architecture whose kernels contain the wait.
MIN_ARCH = 90
#: The port of a kernel's node that opens when all of its blocks have left, `CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC`.
PROGRAMMATIC_PORT = 1
#: Nodes of a graph with programmatic launches at most; the driver's time for longer ones is unknown.
MAX_EARLY_NODES = 4096
#: First version of the bindings whose unversioned names take edge data, and first driver version with such calls.
MIN_UNVERSIONED_CUDA, MIN_EDGE_DATA_DRIVER = 13000, 12030


@lru_cache(maxsize=64)
def call_with_data(cu: Any, name: str) -> Callable[..., Any] | None:
    """Return a call that takes the data of edges.

    None where the bindings or the driver lack it. The bindings for CUDA 12 have it under a versioned name, beside an
    older call; those for CUDA 13 have no other.
    """
    if not hasattr(cu, "CUgraphEdgeData") or int(cu.cuDriverGetVersion()) < MIN_EDGE_DATA_DRIVER:
        return None
    suffixes = ("_v3", "_v2", *([""] if int(cu.CUDA_VERSION) >= MIN_UNVERSIONED_CUDA else []))
    return next((getattr(cu, name + suffix) for suffix in suffixes if hasattr(cu, name + suffix)), None)


def early_edges(cu: Any, arch: str, count: int) -> Callable[[Any, Any, Any], object] | None:
    """Return a call that lets a waiting kernel follow another's blocks.

    None for a graph of `count` nodes whose kernels follow the ends of others.
    """
    call = call_with_data(cu, "cuGraphAddDependencies")
    if call is None or architecture_number(arch) < MIN_ARCH or count > MAX_EARLY_NODES:
        return None
    data, kinds = cu.CUgraphEdgeData(), cu.CUgraphDependencyType
    data.from_port, data.type = PROGRAMMATIC_PORT, int(kinds.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    return lambda graph, before, after: call(graph, [before], [after], [data], 1)


def extend_capture(cu: Any, add: Callable[[Any, list[Any]], list[Any]], stream: Any) -> bool:
    """Add nodes to the graph that a stream of another owner records.

    `add` takes the graph and the nodes that the next one follows, and returns those that it follows afterwards. Returns
    False where the bindings or the driver lack a call, or the stream records nothing.
    """
    ask, update = (call_with_data(cu, f"cuStream{name}") for name in ("GetCaptureInfo", "UpdateCaptureDependencies"))
    if ask is None or update is None:
        return False
    found = ask(stream)
    if not int(found[0]):
        return False
    *_, graph, nodes, _, _ = found
    after = add(graph, list(nodes))
    only = int(cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES)
    update(stream, after, [cu.CUgraphEdgeData() for _ in after], len(after), only)
    return True
