"""Tests of the share of the processors of a host that a search is given: whole cores, where the system knows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuts.bench.processors import physical_cores, share_of


def _host(folder: Path, siblings: dict[int, str]) -> Path:
    for processor, text in siblings.items():
        place = folder / f"cpu{processor}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{text}\n")
    return folder


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """Return a host of four cores whose second threads are numbered behind all first ones."""
    return _host(tmp_path, {p: f"{p % 4},{p % 4 + 4}" for p in range(8)})


def test_half_of_a_host_is_half_of_its_cores_with_all_threads(far: Path) -> None:
    assert physical_cores(range(8), far) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert share_of(range(8), 1, 2, False, far) == [0, 1, 4, 5]
    assert share_of(range(8), 2, 2, False, far) == [*range(8)]


def test_a_spread_half_has_a_thread_of_every_core(far: Path) -> None:
    share = share_of(range(8), 1, 2, True, far)
    assert share == [0, 1, 2, 3]
    assert len(physical_cores(share, far)) == 4


def test_threads_may_be_neighbours(tmp_path: Path) -> None:
    host = _host(tmp_path, {p: f"{p - p % 2}-{p - p % 2 + 1}" for p in range(4)})
    assert share_of(range(4), 1, 2, False, host) == [0, 1]
    assert physical_cores([1, 2, 3], host) == [[1], [2, 3]]


@pytest.mark.parametrize("siblings", [{}, {0: "", 1: "none"}])
def test_where_nothing_is_said_each_processor_is_a_core(siblings: dict[int, str], tmp_path: Path) -> None:
    host = _host(tmp_path, siblings)
    assert physical_cores([3, 1, 0], host) == [[0], [1], [3]]
    assert share_of([0, 1, 3, 5], 1, 2, False, host) == [0, 1]


def test_a_share_is_never_empty(tmp_path: Path) -> None:
    assert share_of([7], 1, 2, False, tmp_path) == share_of([7], 1, 2, True, tmp_path) == [7]
