"""Table of a compilation's time by stage."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from ...ir import Budget
from ...search import TuningSession
from . import console

#: Share of the total time below which a stage shares a row with others.
MIN_ROW_SHARE = 0.005


def time_table(budget: Budget, session: TuningSession | None = None) -> Table:
    """Return the seconds of each stage, and of searches within them."""
    rows = [[name, f"{seconds:.2f}", f"{share:.1%}"] for name, seconds, share in shares(budget)]
    limit = f" of {budget.seconds:g} s" if budget.is_limited and not budget.stopped else ""
    if session is not None:
        phases = session.tuner.statistics.phases
        whole = max(budget.elapsed, 1e-9)
        rows += [[f"  in searches: {name}", f"{s:.2f}", f"{s / whole:.1%}"] for name, s in phases.items()]
    return console.table(f"time: {budget.elapsed:.2f} s{limit}", ("stage", "seconds", "share"), rows)


def shares(budget: Budget) -> Iterator[tuple[str, float, float]]:
    """Yield the stages with their seconds and their share of all.

    They come in order; short ones and time outside of stages come last.
    """
    whole = max(budget.elapsed, 1e-9)
    shown = {name: seconds for name, seconds in budget.spent.items() if seconds >= MIN_ROW_SHARE * whole}
    for name, seconds in shown.items():
        yield name, seconds, seconds / whole
    rest = max(0.0, whole - sum(shown.values()))
    yield "all else", rest, rest / whole
