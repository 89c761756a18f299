"""What the passes hand to the front door: a compiled graph, and the options that steer them.

The passes produce a `CompiledGraph`, the runtime turns it into a plan; both know only these classes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from attrs import field, frozen

from .budget import Budget
from .checks import IndexCheck
from .graph import Graph
from .launch import KernelFunction, Storage
from .precision import PrecisionName

Mode: TypeAlias = Literal["no-fusion", "fusion", "mixed"]


@frozen
class Step:
    """One launch: kernel number `kernel` with graph tensor `tensors[i]` bound to its argument `i`.

    A table argument is bound to the table's own name, `KernelFunction.arguments[i].tensor`. Equal groups share a
    kernel.
    """

    kernel: int
    tensors: tuple[str, ...]


@frozen
class Turns:
    """Steps from number `first` up to, and without, `last`, that are launched in order `count` times over."""

    first: int
    last: int
    count: int


@frozen
class CompiledGraph:
    """Kernels and the order to launch them in, for one canonical graph.

    `storages` says where each tensor that a step touches lives (a tensor without an entry owns a dense buffer of its
    name). `groups` are report records, one per step in the same order: `nodes` (member names), `parameters`, `bound`,
    `level`, `why` and whatever else a report should show; values are JSON values. `complete` is False when the time
    budget ended the search early. The results of `checks` are among the graph's outputs; they are for the runtime, not
    for the caller. `loops` says which steps are repeated; they are apart, in order.
    """

    graph: Graph
    kernels: tuple[KernelFunction, ...]
    steps: tuple[Step, ...]
    storages: Mapping[str, Storage] = field(factory=dict)
    groups: tuple[Mapping[str, object], ...] = ()
    complete: bool = True
    checks: tuple[IndexCheck, ...] = ()
    loops: tuple[Turns, ...] = ()


def launches(steps: int, loops: Sequence[Turns]) -> Iterator[tuple[int, int]]:
    """Yield the number of each step in the order of launches, with the turn of its loop, 0 outside of loops."""
    first = 0
    for loop in loops:
        yield from ((step, 0) for step in range(first, loop.first))
        yield from ((step, turn) for turn in range(loop.count) for step in range(loop.first, loop.last))
        first = loop.last
    yield from ((step, 0) for step in range(first, steps))


def _ignore(name: str, text: str) -> None:
    """Show nothing after a pass."""


def _nobody(name: str) -> None:
    """Tell nobody that a pass is done."""


def _verify_by_default() -> bool:
    return os.environ.get("CUTS_VERIFY", "0") not in ("", "0")


@frozen
class CompileOptions:
    """How to compile: fusion mode, time budget in seconds, and what to show on the way.

    A pipeline calls `after` once behind each of its passes and stops after the one that `stops_after` names. Names in
    `print_after` and `stop_after` are passes; "all" in `print_after` means every one. The pipeline raises a
    `UsageError` that lists its passes for others; `progress` hears of every pass when it is done. With `debug` the plan
    checks every index that comes from data. `precision` names the policy (`ir.precision`) by which values of f32 are
    stored and multiplied; independent groups may share a launch where `side_by_side` says so, with "connected" those
    that some value joins: of a graph of many models, those of one. `begun` is the budget as it runs since the caller's
    door was entered, so that what comes before the passes counts. `memory` is the bytes that a run may take on the
    device: values are computed again where keeping them would take more. A `plain` compilation, for which nothing is
    measured, keeps every declaration and divides no reduction: with nothing fused and no launch shared, its kernels are
    the operations one by one, which others are held against.

    With `verify`, or `debug`, every stage's result is held to the invariants of its level. Where `verify` is not given,
    the environment variable `CUTS_VERIFY` says: the tests set it, and processes that they start inherit it.
    """

    mode: Mode = "mixed"
    budget: float | None = None
    print_after: tuple[str, ...] = ()
    stop_after: str | None = None
    dump: Path | None = None
    callback: Callable[[str, str], None] = _ignore
    debug: bool = False
    progress: Callable[[str], None] = _nobody
    verify: bool = field(factory=_verify_by_default, kw_only=True)
    precision: PrecisionName = field(default="fp32", kw_only=True)
    side_by_side: bool | Literal["connected"] = field(default=True, kw_only=True)
    begun: Budget | None = field(default=None, kw_only=True, eq=False, repr=False)
    memory: int | None = field(default=None, kw_only=True)
    plain: bool = field(default=False, kw_only=True)

    def begin(self) -> Budget:
        """Return the budget as it runs: since the door was entered, where that is known, else from now on."""
        return self.begun or Budget.of(self.budget)

    @property
    def checks_seams(self) -> bool:
        """Whether what a stage made is verified before the next one reads it."""
        return self.verify or self.debug

    @property
    def shows(self) -> bool:
        """Whether somebody wants to see what stages make."""
        return self.dump is not None or bool(self.print_after or self.stop_after)

    def after(self, name: str, show: Callable[[], str]) -> None:
        """Say that a pass is done, and hand the printed IR to the callback where somebody asked for it."""
        self.progress(name)
        if self.dump is not None or name in (*self.print_after, self.stop_after) or "all" in self.print_after:
            self.callback(name, show())

    def stops_after(self, name: str) -> bool:
        """Whether nothing is to run behind the pass `name`."""
        return self.stop_after == name
