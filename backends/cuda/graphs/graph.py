"""Capture of launches as a CUDA graph through NVIDIA's bindings.

PyCUDA has no call for it, but shares the primary context.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from ....ir import BackendError
from ...device import Launch
from .programmatic_launch import enable_programmatic_launch


def capture_graph(run: Launch, stream_handle: int, arch: str) -> Launch | None:
    """Return a replay of the launches of `run` on a stream.

    None where cuda-bindings is not installed.
    """
    cu = _bindings()
    return None if cu is None else _capture(cu, run, cu.CUstream(stream_handle), arch)


def _bindings() -> Any:
    try:
        return import_module("cuda.bindings.driver")
    except ImportError:
        return None


def _check_call(cu: Any, result: tuple[Any, ...]) -> Any:
    """Return the first value of a driver call's result.

    Raises `BackendError` where it failed.
    """
    if int(result[0]) != 0:
        raise BackendError(f"CUDA graph: {cu.cuGetErrorName(result[0])[1].decode()}")
    return result[1] if len(result) > 1 else None


def _capture(cu: Any, run: Launch, stream: Any, arch: str) -> Launch:
    """Return a replay of the launches of `run` on a stream.

    The graph holds addresses only, so the replay keeps `run` alive, and with it the memory that its launches use.
    """
    checked = partial(_check_call, cu)
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
