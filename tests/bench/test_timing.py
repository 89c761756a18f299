"""Contenders of `bench/operators/timing.py` without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from attrs import define, field
from cuts.backends.device import Device
from cuts.bench.operators.timing import by_kernel, by_torch, in_order, run_once
from cuts.ir.compiled import KernelFunction


@define
class Recorder:
    """Recording stand-in for PyTorch."""

    notes: list[str] = field(factory=list)

    @property
    def cuda(self) -> SimpleNamespace:
        graph = SimpleNamespace(replay=lambda: self.notes.append("replay"))
        return SimpleNamespace(
            Stream=object,
            ExternalStream=lambda handle: handle,
            stream=lambda stream: nullcontext(),
            synchronize=lambda: self.notes.append("wait"),
            CUDAGraph=lambda: graph,
            graph=self._record,
        )

    @contextmanager
    def _record(self, graph: object, stream: object) -> Iterator[None]:
        self.notes.append("record")
        yield
        self.notes.append("recorded")


def device(notes: list[str]) -> Device:
    """Return a device that records bound arguments and launches."""

    def bind(loaded: str, kernel: object, pointers: list[Any]) -> Any:
        at = [pointer.buffer.handle for pointer in pointers]
        return lambda: notes.append(f"{loaded} {at}")

    return cast(
        Device,
        SimpleNamespace(stream_handle=0, build=lambda kernels, codes: codes, bind=bind, synchronize=lambda: None),
    )


def test_pytorch_warms_up_once_and_records_all_sets() -> None:
    torch = Recorder()
    calls = [lambda n=n: torch.notes.append(f"call {n}") for n in range(2)]
    contender = by_torch(device([]), torch, "torch", calls)
    assert contender.sets == 2
    contender.replay()
    assert torch.notes == ["call 0"] * 3 + ["wait", "record", "call 0", "call 1", "recorded", "replay"]


@define
class Placed:
    """PyTorch tensor with the attributes that kernels need."""

    address: int
    filled: list[float] = field(factory=list)
    nbytes: int = 4

    def data_ptr(self) -> int:
        return self.address

    def fill_(self, value: float) -> None:
        self.filled.append(value)


def test_a_kernel_binds_each_set_by_argument_names() -> None:
    notes: list[str] = []
    kernel = cast(KernelFunction, SimpleNamespace(arguments=[SimpleNamespace(tensor="y"), SimpleNamespace(tensor="x")]))
    sets = [{"x": Placed(10 * n), "y": Placed(10 * n + 1)} for n in (1, 2)]
    launches = by_kernel(device(notes), kernel, cast(bytes, "k"), sets)
    run_once(device(notes), Recorder(), launches[0], sets[0]["y"])
    in_order(launches)()
    assert notes == ["k [11, 10]", "k [11, 10]", "k [21, 20]"]
    assert np.isnan(sets[0]["y"].filled).all()
