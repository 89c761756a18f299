"""Measurement of storage bandwidth with an artificial clock and disk.

Measuring takes long enough, and all sharers take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from cuts.cluster.engine import SingleProcess
from cuts.cluster.storage.disk import PIECE_BYTES as WHOLE
from cuts.cluster.storage.disk import Disk, finish
from cuts.cluster.storage_rate import MAX_WINDOWS, WINDOW_SECONDS, StorageRate, storage_rate

PIECE = 10


class Two(SingleProcess):
    """First of two processes.

    The other's rate is a multiple of this one's, except where this process is alone.
    """

    size = 2

    def __init__(self, factor: float) -> None:
        self.factor, self.heard = factor, 0

    def total(self, value: float) -> float:
        self.heard += 1
        return value if self.heard == 1 else value * (1 + self.factor)

    def minimum(self, value: int) -> int:
        return round(value * min(1.0, self.factor))


def measure_disk(engine: SingleProcess, rates: Sequence[float]) -> tuple[StorageRate, float]:
    """Return a disk's measured rate, and the seconds of the measurement.

    The disk has a rate for each window's length of time.
    """
    now = [0.0]

    def move() -> int:
        now[0] += PIECE / rates[min(int(now[0] / WINDOW_SECONDS), len(rates) - 1)]
        return PIECE

    return storage_rate(engine, move, 10**9, lambda: now[0]), now[0]


def test_sharers_of_a_disk_get_the_mean_rate() -> None:
    found, _ = measure_disk(Two(0.8), [2000.0, 1000.0])
    assert found.shared
    assert found.each == pytest.approx(900, rel=0.03)
    assert found.alone == pytest.approx(2000, rel=0.03)
    assert "for each of 2 processes at once" in found.text("gives")
    assert "they share it" in found.text("gives")


def test_of_two_disks_the_slower_one_counts() -> None:
    found, _ = measure_disk(Two(0.85), [2000.0])
    assert not found.shared
    assert found.each == pytest.approx(0.85 * 2000, rel=0.03)
    assert "each has its own" in found.text("gives")


def test_credits_of_a_disk_do_not_count() -> None:
    found, seconds = measure_disk(SingleProcess(), [2000.0, 1800.0, 1200.0, 700.0])
    assert found.steady
    assert found.each == pytest.approx(700, rel=0.03)
    assert seconds < 6 * WINDOW_SECONDS


def test_an_unsteady_disk_is_measured_briefly_and_named() -> None:
    found, seconds = measure_disk(SingleProcess(), [1000.0 * 0.8**k for k in range(30)])
    assert not found.steady
    assert seconds == pytest.approx(MAX_WINDOWS * WINDOW_SECONDS, rel=0.1)
    assert 1000 * 0.8**6 < found.each < 1000 * 0.8**4  # the total
    assert "not steady" in found.text("gives")


def test_a_disk_counts_only_its_busy_seconds(tmp_path: Path) -> None:
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
