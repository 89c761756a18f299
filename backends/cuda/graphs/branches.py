"""Concurrent launches recorded in a CUDA graph: each follows only its dependencies.

A stream that is recorded knows the nodes that the next one follows. They are set before each launch, and looked up
after it: a routine of a library may record several nodes in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ...device import Launch
from .graph_edges import calls_with_data

#: Driver calls that read and set the dependencies of a recorded stream.
INFO, UPDATE = "cuStreamGetCaptureInfo", "cuStreamUpdateCaptureDependencies"
Call: TypeAlias = Callable[..., tuple[Any, ...]]


def can_branch(cu: Any) -> bool:
    """Return whether the bindings and the driver support concurrent launches."""
    return hasattr(cu, "cuGraphAddEmptyNode") and calls_with_data(cu, (INFO, UPDATE)) is not None


def record_branches(
    launches: Sequence[Launch],
    waits: Sequence[Sequence[int]],
    stream: Any,
    cu: Any,
    checked: Callable[[tuple[Any, ...]], Any],
) -> None:
    """Launch everything on a recorded stream, each after its dependencies."""
    calls = calls_with_data(cu, (INFO, UPDATE))
    assert calls is not None, "whoever asks has looked whether the driver can"
    graph, _ = _capture_state(stream, calls[INFO], checked)
    begin = [checked(cu.cuGraphAddEmptyNode(graph, None, 0))]
    ends: list[list[Any]] = []
    for launch, each in zip(launches, waits, strict=True):
        dependencies = dict.fromkeys(node for number in each for node in ends[number])
        nodes = list(dependencies) or begin
        _follow(stream, nodes, calls[UPDATE], cu, checked)
        launch()
        ends.append(_capture_state(stream, calls[INFO], checked)[1])


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
