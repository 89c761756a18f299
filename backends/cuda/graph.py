"""Capturing launches as a CUDA graph through NVIDIA's bindings: PyCUDA has no call for it, but shares the primary
context.
"""

from __future__ import annotations

from contextvars import ContextVar
from importlib import import_module
from typing import Any

from ...ir import BackendError
from ..device import Launch
from .overlap import overlap_launches

#: The bindings by which a graph is recorded now, in this thread.
RECORDING: ContextVar[Any] = ContextVar("RECORDING", default=None)


def capture_graph(run: Launch, stream_handle: int, arch: str) -> Launch | None:
    """Return a replay of what `run` launches on the stream of a device, or None where cuda-bindings is not installed.

    The graph holds addresses only, so the replay keeps `run` alive, and with it the memory that its launches use.
    """
    try:
        cu: Any = import_module("cuda.bindings.driver")
    except ImportError:
        return None

    def checked(result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            raise BackendError(f"CUDA graph: {cu.cuGetErrorName(result[0])[1].decode()}")
        return result[1] if len(result) > 1 else None

    stream = cu.CUstream(stream_handle)
    # Relaxed: other threads of the process may allocate while we capture.
    checked(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    recording = RECORDING.set(cu)
    try:
        run()
    finally:
        RECORDING.reset(recording)
        graph = checked(cu.cuStreamEndCapture(stream))
    overlap_launches(graph, cu, checked, arch)
    executable = checked(cu.cuGraphInstantiate(graph, 0))
    checked(cu.cuGraphDestroy(graph))

    def replay(owner: Launch = run) -> None:
        del owner
        checked(cu.cuGraphLaunch(executable, stream))

    return replay
