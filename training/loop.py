"""Training loop over batches, with checkpoints and a progress bar.

The state stays on the device; losses are collected.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from attrs import frozen
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..compile import CompiledPlan
from ..ir import Array, TensorType, UsageError
from ..runtime import DonatedSession
from .checkpoint import Checkpoint, load_checkpoint

Batch = Mapping[str, object]


class _Steps(Protocol):
    """Consecutive steps, and the state that the next one begins with."""

    def step(self, batch: Batch) -> dict[str, Any]: ...

    def state(self) -> dict[str, Array]: ...


class _OnDevice:
    """Steps whose state stays on the device."""

    def __init__(self, plan: CompiledPlan, carried: Mapping[str, str], state: Batch, wanted: Sequence[str]) -> None:
        self._runs = DonatedSession(plan.session, carried)
        self._first: Batch | None = state
        self._fixed = {name: value for name, value in state.items() if name not in carried}
        self._start = {name: np.asarray(state[name]) for name in carried}
        self._wanted = wanted

    def step(self, batch: Batch) -> dict[str, Any]:
        first, self._first = self._first, None
        if first is not None:
            return self._runs.begin({**first, **batch}, self._wanted)
        return self._runs.run_next({**self._fixed, **batch}, self._wanted)

    def state(self) -> dict[str, Array]:
        return self._runs.state() if self._first is None else self._start


class _OnHost:
    """Steps of a plan that launches no kernels: the reference."""

    def __init__(self, plan: CompiledPlan, carried: Mapping[str, str], state: Batch, wanted: Sequence[str]) -> None:
        self._plan, self._carried, self._state, self._wanted = plan, carried, dict(state), wanted

    def step(self, batch: Batch) -> dict[str, Any]:
        found = self._plan.run({**self._state, **batch})
        for name, source in self._carried.items():
            self._state[name] = np.asarray(found[source]).astype(self._plan.inputs[name].dtype.numpy)
        return {name: found[name] for name in self._wanted}

    def state(self) -> dict[str, Array]:
        return {name: np.asarray(self._state[name]) for name in self._carried}


@frozen
class TrainingLoop:
    """Configuration of a training loop.

    `carried` maps inputs to the outputs that replace them; `checkpoint` is a file, written after each
    `every` steps; `notice` is called after each step; `progress` shows a bar (by default on a terminal).
    """

    plan: CompiledPlan
    carried: Mapping[str, str]
    loss: str
    checkpoint: str | os.PathLike[str] | None = None
    every: int = 0
    outputs: Sequence[str] = ()
    notice: Callable[[int, Mapping[str, Array]], None] | None = None
    progress: bool | None = None

    def run(self, batches: Iterable[Batch], initial: Batch) -> Checkpoint:
        """Run a step on each batch after those of the checkpoint.

        Raises `UsageError` where checkpoints are wanted without a file, or in no folder, and for a loss that is no
        number any more.
        """
        if self.every and self.checkpoint is None:
            raise UsageError("'every' says when to write a checkpoint, not where", hint="give checkpoint=FILE")
        if self.checkpoint is not None and not Path(self.checkpoint).parent.is_dir():
            raise UsageError(f"cannot write checkpoint {self.checkpoint}: there is no such folder")  # before any step
        begun = self._resume(initial)
        losses = list(begun.losses)
        steps_class = _OnHost if self.plan.target.dialect == "reference" else _OnDevice
        wanted = tuple(dict.fromkeys((self.loss, *self.outputs)))
        steps: _Steps = steps_class(self.plan, self.carried, {**initial, **begun.state}, wanted)
        with self._bar() as bar:
            shown = bar.add_task("training", total=_length(batches), completed=begun.steps, loss=float("nan"))
            for batch in islice(batches, begun.steps, None):
                found = steps.step(batch)
                losses.append(float(found[self.loss]))
                bar.update(shown, advance=1, loss=losses[-1])
                if self.notice:
                    self.notice(len(losses), found)
                if self.every and len(losses) % self.every == 0:
                    self._save(steps, losses)
        ended = Checkpoint(steps.state(), tuple(losses))
        if self.checkpoint is not None and ended.steps != begun.steps:
            ended.save(self.checkpoint)
        return ended

    def _resume(self, initial: Batch) -> Checkpoint:
        """Return the checkpoint of an earlier run, or an empty one."""
        types: dict[str, TensorType] = {name: self.plan.inputs[name] for name in self.carried}
        if self.checkpoint is not None and Path(self.checkpoint).exists():
            return load_checkpoint(self.checkpoint, types)
        missing = [name for name in self.carried if name not in initial]
        if missing:
            raise UsageError(f"the state lacks '{missing[0]}'", hint="give all of it, as in training.initial")
        return Checkpoint({}, ())

    def _save(self, steps: _Steps, losses: Sequence[float]) -> None:
        assert self.checkpoint is not None
        Checkpoint(steps.state(), tuple(losses)).save(self.checkpoint)

    def _bar(self) -> Progress:
        shown = sys.stderr.isatty() if self.progress is None else self.progress
        return Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TimeRemainingColumn(), TextColumn("loss {task.fields[loss]:.4g}"),
            console=Console(stderr=True), disable=not shown, transient=False,
        )  # fmt: skip


def _length(batches: Iterable[Batch]) -> int | None:
    """Return the number of batches, None where it is not known."""
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:
        return None
