"""Capture of launches on a stream as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...device import Launch
from .programmatic_launch import enable_programmatic_launch


def capture_graph(run: Launch, stream: Any, arch: str, cu: Any, checked: Callable[[tuple[Any, ...]], Any]) -> Launch:
    """Return a replay of the launches of `run` on a stream.

    The graph holds addresses only, so the replay keeps `run` alive, and with it the memory that its launches use.
    """
    # Relaxed: other threads of the process may allocate during the capture.
    checked(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    try:
        run()
    finally:
        graph = checked(cu.cuStreamEndCapture(stream))
    enable_programmatic_launch(graph, cu, checked, arch)
    executable = checked(cu.cuGraphInstantiate(graph, 0))
    checked(cu.cuGraphDestroy(graph))

    def replay(owner: Launch = run) -> None:
        del owner
        checked(cu.cuGraphLaunch(executable, stream))

    return replay
