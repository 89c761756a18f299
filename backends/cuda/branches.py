"""Launches recorded in branches: each follows the nodes of those that it waits for, and nothing else.

A stream that is recorded knows the nodes that the next one follows. They are set before each launch, and looked up
behind it: a routine of a library may record several nodes, which follow one another as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..device import Launch

#: The driver's calls that it takes, and the version from which on they have data of edges.
VERSION = 13000
NEEDED = ("cuStreamGetCaptureInfo", "cuStreamUpdateCaptureDependencies", "cuGraphAddEmptyNode")


def can_branch(cu: Any) -> bool:
    """Whether the bindings have what it takes."""
    return all(hasattr(cu, name) for name in NEEDED) and int(getattr(cu, "CUDA_VERSION", 0)) >= VERSION


def record_branches(
    launches: Sequence[Launch],
    waits: Sequence[Sequence[int]],
    stream: Any,
    cu: Any,
    checked: Callable[[tuple[Any, ...]], Any],
) -> None:
    """Launch everything on a stream that is recorded, each behind the launches that it waits for."""
    graph, _ = _known(stream, cu, checked)
    begin = [checked(cu.cuGraphAddEmptyNode(graph, None, 0))]
    ends: list[list[Any]] = []
    for launch, each in zip(launches, waits, strict=True):
        behind = dict.fromkeys(node for number in each for node in ends[number])
        _follow(list(behind) or begin, stream, cu, checked)
        launch()
        ends.append(_known(stream, cu, checked)[1])


def _known(stream: Any, cu: Any, checked: Callable[[tuple[Any, ...]], Any]) -> tuple[Any, list[Any]]:
    """Return the graph that is recorded, and the nodes that the next one follows."""
    result = cu.cuStreamGetCaptureInfo(stream)
    checked(result[:2])
    *_, graph, nodes, _, _ = result
    return graph, list(nodes)


def _follow(nodes: list[Any], stream: Any, cu: Any, checked: Callable[[tuple[Any, ...]], Any]) -> None:
    flag = cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    plain = [cu.CUgraphEdgeData() for _ in nodes]
    checked(cu.cuStreamUpdateCaptureDependencies(stream, nodes, plain, len(nodes), int(flag)))
