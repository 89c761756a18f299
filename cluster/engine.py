"""Data exchange between the processes of a run, one for each GPU.

`torch_engine` exchanges through PyTorch; a single process needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..backends import Pointer
from ..ir import DType

#: Waits until a value is sent.
Wait = Callable[[], None]


class Engine(Protocol):
    """Communicator of a process.

    Ranks count the GPUs of a layer first, then stages, then groups: `rank = (group * p + stage) * wp + part`.
    """

    rank: int
    size: int

    def sum(self, place: Pointer, elements: int, dtype: DType) -> None:
        """Add up over the groups of this stage, in place."""

    def join(self, place: Pointer, elements: int, dtype: DType) -> None:
        """Add up over the GPUs that share this stage's layers, in place."""

    def total(self, value: float) -> float:
        """Add a number up over all processes."""

    def minimum(self, value: int) -> int:
        """Return the minimum of a number over all processes.

        It also waits for all of them.
        """

    def send(self, place: Pointer, nbytes: int, stage: int, *, backward: bool) -> Wait:
        """Begin to send to another stage of this group."""

    def receive(self, place: Pointer, nbytes: int, stage: int, *, backward: bool) -> None:
        """Receive from another stage of this group."""


class SingleProcess:
    """Engine of a single process, without exchange."""

    rank, size = 0, 1

    def sum(self, place: Pointer, elements: int, dtype: DType) -> None:
        """Keep the only group's sum."""

    def join(self, place: Pointer, elements: int, dtype: DType) -> None:
        """Keep the only GPU's layer."""

    def total(self, value: float) -> float:
        """Return the number."""
        return value

    def minimum(self, value: int) -> int:
        """Return the number."""
        return value

    def send(self, place: Pointer, nbytes: int, stage: int, *, backward: bool) -> Wait:
        """Fail: there is one stage."""
        raise AssertionError("a single process has no other stage")

    def receive(self, place: Pointer, nbytes: int, stage: int, *, backward: bool) -> None:
        """Fail: there is one stage."""
        raise AssertionError("a single process has no other stage")
