"""Options of a compilation."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

from attrs import field, frozen

from ..machine import PrecisionName
from .budget import Budget
from .pruning import BOUND_PRUNING, Pruning

Mode: TypeAlias = Literal["no-fusion", "fusion", "mixed"]


def _ignore(name: str, text: str) -> None:
    """Show nothing after a pass."""


def _ignore_progress(name: str) -> None:
    """Ignore that a pass is done."""


def _verify_by_default() -> bool:
    return os.environ.get("CUTS_VERIFY", "0") not in ("", "0")


@frozen
class CompileOptions:
    """Fusion mode, time budget in seconds, and the output of intermediate stages.

    A pipeline calls `after` once after each of its passes and stops after the one that `stops_after` names. Names in
    `print_after` and `stop_after` are passes; "all" in `print_after` means every one. The pipeline raises a
    `UsageError` that lists its passes for others; `progress` is called with the name of every finished pass. With
    `debug` the plan checks every index that comes from data. `precision` names the policy (`ir.machine`) by which
    values of f32 are stored and multiplied. With `horizontal_fusion`, independent groups may share a launch; with
    "connected" only those that some value joins: of a graph of many models, those of one. `begun` is the budget,
    running since the entry point was called, so that work before the passes counts. `memory` is the bytes that a run
    may take on the device: values are rematerialised where storing them would take more. A `plain`
    compilation, for which nothing is measured, keeps every declaration and divides no reduction: with nothing fused and
    no launch shared, its kernels are the operations one by one, the reference of other plans. Unless `deterministic`,
    scatters combine floats in any order, by atomic operations. `pruning` is the rule by which points of schedule spaces
    are discarded.

    With `verify`, or `debug`, the result of every stage is checked against the invariants of its level. The default of
    `verify` comes from the environment variable `CUTS_VERIFY`: the tests set it, and processes that they start inherit
    it.
    """

    mode: Mode = "mixed"
    budget: float | None = None
    print_after: tuple[str, ...] = ()
    stop_after: str | None = None
    dump: Path | None = None
    callback: Callable[[str, str], None] = _ignore
    debug: bool = False
    progress: Callable[[str], None] = _ignore_progress
    verify: bool = field(factory=_verify_by_default, kw_only=True)
    precision: PrecisionName = field(default="fp32", kw_only=True)
    horizontal_fusion: bool | Literal["connected"] = field(default=True, kw_only=True)
    begun: Budget | None = field(default=None, kw_only=True, eq=False, repr=False)
    memory: int | None = field(default=None, kw_only=True)
    plain: bool = field(default=False, kw_only=True)
    deterministic: bool = field(default=True, kw_only=True)
    pruning: Pruning = field(default=BOUND_PRUNING, kw_only=True)

    def begin(self) -> Budget:
        """Return the running budget.

        It runs since the entry point was called, where that is known, else from now on.
        """
        return self.begun or Budget.of(self.budget)

    @property
    def verifies_stages(self) -> bool:
        """Return whether the results of stages are verified before use."""
        return self.verify or self.debug

    @property
    def shows(self) -> bool:
        """Return whether the results of stages are printed."""
        return self.dump is not None or bool(self.print_after or self.stop_after)

    def report_pass(self, name: str, show: Callable[[], str]) -> None:
        """Report a finished pass, and print its IR where requested."""
        self.progress(name)
        if self.dump is not None or name in (*self.print_after, self.stop_after) or "all" in self.print_after:
            self.callback(name, show())

    def stops_after(self, name: str) -> bool:
        """Return whether the pipeline stops after the pass `name`."""
        return self.stop_after == name
