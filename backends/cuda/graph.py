"""Capturing launches as a CUDA graph through NVIDIA's bindings: PyCUDA has no call for it, but shares the primary
context.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from typing import Any

from ...ir import BackendError
from ..device import Launch
from .branches import can_branch, record_branches
from .overlap import overlap_launches

#: The bindings by which a graph is recorded now, in this thread.
RECORDING: ContextVar[Any] = ContextVar("RECORDING", default=None)


def capture_graph(run: Launch, stream_handle: int, arch: str) -> Launch | None:
    """Return a replay of what `run` launches on a device's stream, or None where cuda-bindings is not installed."""
    cu = _bindings()
    return None if cu is None else _capture(cu, run, cu.CUstream(stream_handle), arch)


def capture_branches(
    launches: Sequence[Launch], waits: Sequence[Sequence[int]], stream_handle: int, arch: str
) -> Launch | None:
    """Return a replay of launches on the stream of a device, each behind those that it waits for, or None where
    cuda-bindings is not installed or has no call for it.
    """
    cu = _bindings()
    if cu is None or not can_branch(cu):
        return None
    stream = cu.CUstream(stream_handle)
    return _capture(cu, partial(record_branches, launches, waits, stream, cu, partial(_checked, cu)), stream, arch)


def _bindings() -> Any:
    try:
        return import_module("cuda.bindings.driver")
    except ImportError:
        return None


def _checked(cu: Any, result: tuple[Any, ...]) -> Any:
    """Return the first value of what a call of the driver returned.

    Raises `BackendError` where it failed.
    """
    if int(result[0]) != 0:
        raise BackendError(f"CUDA graph: {cu.cuGetErrorName(result[0])[1].decode()}")
    return result[1] if len(result) > 1 else None


def _capture(cu: Any, run: Launch, stream: Any, arch: str) -> Launch:
    """Return a replay of what `run` launches on a stream.

    The graph holds addresses only, so the replay keeps `run` alive, and with it the memory that its launches use.
    """
    checked = partial(_checked, cu)
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
