"""Bindings with kernels in Python, and graphs of a driver in C."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from .fake_bindings import FakeBindings
from .fake_cuda import FakeCuda

#: Streams that there are from the start.
STREAMS = (0, 7, 8, 9)


class FakeDriver(FakeBindings):
    """Bindings with a driver in C for the library that records graphs.

    `calls` counts the calls of the bindings, `fails` is the call that fails, `recorded` has streams under capture.
    """

    captured: list[Any] | None = None
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
    CUstream = int

    def __init__(
        self,
        kernels: Mapping[str, Callable[..., None]] | None = None,
        attributes: Mapping[str, int] | None = None,
        old: bool = False,
    ) -> None:
        super().__init__(
            kernels or {}, {"COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0} | dict(attributes or {})
        )
        self.cuda = FakeCuda(old)
        self.library = str(self.cuda.path)
        counts = {name: run.__code__.co_argcount for name, run in self.kernels.items()}
        self.functions = {name: self.cuda.define(name, self.kernels[name], count) for name, count in counts.items()}
        self.calls: Counter[str] = Counter()
        self.fails: set[str] = set()
        self.recorded: set[int] = set()
        self.live |= {stream: f"stream {stream}" for stream in STREAMS}

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        call = super().__getattr__(name)

        def count_call(*arguments: Any) -> tuple[Any, ...]:
            self.calls[name] += 1
            return (2,) if name in self.fails else call(*arguments)

        return count_call

    def _cuModuleGetFunction(self, module: int, name: bytes) -> tuple[int, int]:  # type: ignore[override]
        assert module in self.live
        return 0, self.functions[name.decode()]

    def _cuLaunchKernel(self, function: int, *rest: Any) -> tuple[int]:  # type: ignore[override]
        name = next(name for name, known in self.functions.items() if known == function)
        if self.captured is None:
            return super()._cuLaunchKernel(name, *rest)
        run = self.kernels[name]
        pointers = (ctypes.c_void_p * run.__code__.co_argcount).from_address(rest[-2])
        values = [ctypes.c_uint64.from_address(p or 0).value for p in pointers]
        self.captured.append(lambda: run(*values))
        return (0,)

    def _cuStreamBeginCapture(self, stream: int, mode: int) -> tuple[int]:
        self.captured = []
        return (0,)

    def _cuStreamEndCapture(self, stream: int) -> tuple[int, list[Any] | None]:
        found, self.captured = self.captured, None
        return 0, found

    def _cuStreamIsCapturing(self, stream: int) -> tuple[int, int]:
        return 0, int(stream in self.recorded)

    def _cuGraphInstantiate(self, graph: list[Any], flags: int) -> tuple[int, list[Any]]:
        return 0, list(graph)

    def _cuGraphLaunch(self, executable: list[Any], stream: int) -> tuple[int]:
        assert stream in self.live
        for action in executable:
            action()
        return (0,)

    def _cuGraphDestroy(self, graph: object) -> tuple[int]:
        return (0,)
