"""Launches recorded in branches: each follows the nodes of those that it waits for, and nothing else.

A stream that is recorded knows the nodes that the next one follows. They are set before each launch, and looked up
behind it: a routine of a library may record several nodes, which follow one another as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..device import Launch
from .edges import calls_with_data

#: The driver's calls about edges that it takes.
INFO, FOLLOW = "cuStreamGetCaptureInfo", "cuStreamUpdateCaptureDependencies"
Call: TypeAlias = Callable[..., tuple[Any, ...]]


def can_branch(cu: Any) -> bool:
    """Whether the bindings and the driver have what it takes."""
    return hasattr(cu, "cuGraphAddEmptyNode") and calls_with_data(cu, (INFO, FOLLOW)) is not None


def record_branches(
    launches: Sequence[Launch],
    waits: Sequence[Sequence[int]],
    stream: Any,
    cu: Any,
    checked: Callable[[tuple[Any, ...]], Any],
) -> None:
    """Launch everything on a stream that is recorded, each behind the launches that it waits for."""
    calls = calls_with_data(cu, (INFO, FOLLOW))
    assert calls is not None, "whoever asks has looked whether the driver can"
    graph, _ = _known(stream, calls[INFO], checked)
    begin = [checked(cu.cuGraphAddEmptyNode(graph, None, 0))]
    only = int(cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES)
    ends: list[list[Any]] = []
    for launch, each in zip(launches, waits, strict=True):
        behind = dict.fromkeys(node for number in each for node in ends[number])
        nodes = list(behind) or begin
        plain = [cu.CUgraphEdgeData() for _ in nodes]
        checked(calls[FOLLOW](stream, nodes, plain, len(nodes), only))
        launch()
        ends.append(_known(stream, calls[INFO], checked)[1])


def _known(stream: Any, info: Call, checked: Callable[[tuple[Any, ...]], Any]) -> tuple[Any, list[Any]]:
    """Return the graph that is recorded, and the nodes that the next one follows."""
    result = info(stream)
    checked(result[:2])
    *_, graph, nodes, _, _ = result
    return graph, list(nodes)
