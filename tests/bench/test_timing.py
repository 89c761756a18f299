"""Contenders of `bench/operators/timing.py` without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

from attrs import define, field
from cuts.backends.device import Device
from cuts.bench.operators.timing import Turns, by_torch


@define
class Recorder:
    """Recording stand-in for PyTorch."""

    notes: list[str] = field(factory=list)

    @property
    def cuda(self) -> SimpleNamespace:
        graph = SimpleNamespace(replay=lambda: self.notes.append("replay"))
        return SimpleNamespace(
            Stream=lambda: SimpleNamespace(wait_stream=lambda other: None),
            current_stream=lambda: None,
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


def test_processes_meet_and_take_turns(tmp_path: Path) -> None:
    first, second = Turns(tmp_path, 2), Turns(tmp_path, 2)
    notes: list[str] = []

    def wait() -> None:
        second.come(1)
        second.wait(9.0)
        with second.turn():
            notes.append("second")

    thread = Thread(target=wait)
    with first.turn():
        thread.start()
        first.come(0)
        first.wait(9.0)
        notes.append("first")
    thread.join(9.0)
    assert notes == ["first", "second"]
