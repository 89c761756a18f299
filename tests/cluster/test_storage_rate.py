"""What storage gives is measured long enough, and by all who share it: with a clock and a disk that are made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from cuts.cluster.disk import PIECE as WHOLE
from cuts.cluster.disk import Disk, finish
from cuts.cluster.engine import Alone
from cuts.cluster.storage_rate import MOST, WINDOW, StorageRate, storage_rate

PIECE = 10


class Two(Alone):
    """The first of two processes; the other's rate is that of this one by a factor, but while this one is alone."""

    size = 2

    def __init__(self, factor: float) -> None:
        self.factor, self.heard = factor, 0

    def total(self, value: float) -> float:
        self.heard += 1
        return value if self.heard == 1 else value * (1 + self.factor)

    def least(self, value: int) -> int:
        return round(value * min(1.0, self.factor))


def measured(engine: Alone, rates: Sequence[float]) -> tuple[StorageRate, float]:
    """Return what is measured of a disk with a rate for each window's length of time, and the seconds that it takes."""
    now = [0.0]

    def move() -> int:
        now[0] += PIECE / rates[min(int(now[0] / WINDOW), len(rates) - 1)]
        return PIECE

    return storage_rate(engine, move, 10**9, lambda: now[0]), now[0]


def test_two_that_share_a_disk_get_the_mean_and_are_told_so() -> None:
    found, _ = measured(Two(0.8), [2000.0, 1000.0])
    assert found.shared
    assert found.each == pytest.approx(900, rel=0.03)
    assert found.alone == pytest.approx(2000, rel=0.03)
    assert "for each of 2 processes at once" in found.text("gives")
    assert "they share it" in found.text("gives")


def test_of_two_disks_the_slower_one_counts() -> None:
    found, _ = measured(Two(0.85), [2000.0])
    assert not found.shared
    assert found.each == pytest.approx(0.85 * 2000, rel=0.03)
    assert "each has its own" in found.text("gives")


def test_credits_of_a_disk_do_not_count() -> None:
    found, seconds = measured(Alone(), [2000.0, 1800.0, 1200.0, 700.0])
    assert found.steady
    assert found.each == pytest.approx(700, rel=0.03)
    assert seconds < 6 * WINDOW


def test_a_disk_that_never_settles_is_measured_for_a_while_and_named() -> None:
    found, seconds = measured(Alone(), [1000.0 * 0.8**k for k in range(30)])
    assert not found.steady
    assert seconds == pytest.approx(MOST * WINDOW, rel=0.1)
    assert 1000 * 0.8**6 < found.each < 1000 * 0.8**4  # what it came to
    assert "not steady" in found.text("gives")


def test_a_disk_counts_the_seconds_in_which_something_is_under_way(tmp_path: Path) -> None:
    now = [5.0]
    disk = Disk(direct=False, lanes=1, clock=lambda: now[0])
    path, host = tmp_path / "values", np.zeros(WHOLE + 1, np.uint8)

    def slowly(begin: int, end: int) -> None:
        now[0] += 2.0  # each of two pieces

    path.touch()
    finish(disk.write(path, 0, host, host.nbytes, slowly))
    assert disk.busy == 4.0
    now[0] += 10.0  # nothing to do
    finish(disk.read(path, 0, host, host.nbytes, slowly))
    disk.close()
    assert disk.busy == 8.0
