"""Nodes in the CUDA graph that a stream of another owner records.

Such a stream knows the nodes that the next one follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .graph_edges import calls_with_data

#: Driver calls that read and set the dependencies of a recorded stream.
INFO, UPDATE = "cuStreamGetCaptureInfo", "cuStreamUpdateCaptureDependencies"
Call: TypeAlias = Callable[..., tuple[Any, ...]]


def extend_capture(
    add: Callable[[Any, list[Any]], list[Any]], stream: Any, cu: Any, checked: Callable[[tuple[Any, ...]], Any]
) -> bool:
    """Add nodes to the graph that a stream records.

    `add` takes the graph and the nodes that the next one follows, and returns those that it follows afterwards. Returns
    False where the bindings or the driver lack a call, or the stream records nothing.
    """
    calls = calls_with_data(cu, (INFO, UPDATE))
    if calls is None or not int(checked(calls[INFO](stream)[:2])):
        return False
    graph, before = _capture_state(stream, calls[INFO], checked)
    _follow(stream, add(graph, before), calls[UPDATE], cu, checked)
    return True


def _follow(
    stream: Any, nodes: Sequence[Any], update: Call, cu: Any, checked: Callable[[tuple[Any, ...]], Any]
) -> None:
    """Let the next node of a recorded stream follow these."""
    only = int(cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES)
    checked(update(stream, nodes, [cu.CUgraphEdgeData() for _ in nodes], len(nodes), only))


def _capture_state(stream: Any, info: Call, checked: Callable[[tuple[Any, ...]], Any]) -> tuple[Any, list[Any]]:
    """Return the recorded graph, and the nodes that the next one follows."""
    result = info(stream)
    checked(result[:2])
    *_, graph, nodes, _, _ = result
    return graph, list(nodes)
