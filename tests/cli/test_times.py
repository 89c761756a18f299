"""The table of stage times, by the test's clock."""

from __future__ import annotations

import pytest
from cuts.cli.output.times import shares
from cuts.ir import Budget


class Clock:
    """Clock that shows a given time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_short_stages_share_a_row_with_the_rest() -> None:
    clock = Clock()
    budget = Budget.of(None, clock)
    for stage, seconds in (("import", 0.01), ("partition", 6.0), ("compile", 3.0), ("partition", 0.5)):
        with budget.stage(stage):
            clock.seconds += seconds
    clock.seconds += 0.49
    rows = list(shares(budget))
    assert [name for name, *_ in rows] == ["partition", "compile", "all else"]
    assert [seconds for _, seconds, _ in rows] == pytest.approx([6.5, 3.0, 0.5])
    assert [share for *_, share in rows] == pytest.approx([0.65, 0.3, 0.05])
