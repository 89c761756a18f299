"""Dry runs without a device and without files.

Memory is taken and given back as in a run; nothing moves or computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from cuts.backends import find_target
from cuts.cluster.engine import SingleProcess
from cuts.cluster.kernels import Kernels
from cuts.cluster.plans.plan_file import ClusterPlan
from cuts.cluster.running import Runner, process
from cuts.cluster.storage.store import LayerStore


class _Nothing:
    """Object whose every method does nothing."""

    busy, read_bytes, written_bytes, direct = 0.0, 0, 0, True

    def __init__(self, *_: object, **__: object) -> None:
        self.target = find_target("opencl")

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class _Device(_Nothing):
    def allocate(self, nbytes: int) -> Any:
        return mock.Mock(nbytes=nbytes)

    def build(self, kernels: tuple[object, ...], binaries: object) -> tuple[object, ...]:
        return tuple(kernels)

    def bind_turns(self, loaded: object, kernel: object, turns: Sequence[object]) -> Any:
        return tuple(lambda: None for _ in turns)


class _Disk(_Nothing):
    def read(self, *_: object) -> list[Any]:
        return []

    write = read


class _Pool(_Nothing):
    def take(self, nbytes: int) -> Any:
        return np.empty(0, np.uint8)


class _Store(LayerStore):
    def steps(self, stage: int) -> int:
        return 0

    def finish(self, stage: int, steps: int) -> None:
        """Nothing is written."""


class _One(SingleProcess):
    """One of several processes, without a peer."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def join(self, *_: object) -> None:
        """Nothing is added."""

    def send(self, *_: object, **__: object) -> Any:
        return lambda: None

    def receive(self, *_: object, **__: object) -> None:
        """Nothing comes."""


def _store(folder: object, model: Any, layers: object, *, part: int, parts: int, **_: object) -> LayerStore:
    return _Store.describe(Path("nowhere"), model, part, parts)


@contextmanager
def _nothing_real() -> Iterator[None]:
    names = {"open_device": _Device, "open_transfers": _Nothing, "Disk": _Disk, "HostPool": _Pool}
    with mock.patch.multiple(process, **names, open_store=_store, reserve=lambda *_: None):
        yield


def dry_run(plan: ClusterPlan, kernels: Kernels, rank: int = 0, steps: int = 2, memory: float = 1e18) -> Runner:
    """Run one of a plan's processes for some steps; return its runner."""
    tokens = (plan.way.micro, plan.model.sequence)
    zeros = np.zeros(tokens if plan.model.vocabulary else (*tokens, plan.model.hidden), np.float32)
    size = plan.way.gpus
    with _nothing_real():
        made = Runner(
            plan,
            "nowhere",
            memory=memory,
            engine=(lambda _: _One(rank, size)) if size > 1 else None,
            kernels=kernels,
            batches=lambda *_: (zeros, zeros),
        )
        made.train(steps) if plan.training else [made.infer(number) for number in range(steps)]
    return made
