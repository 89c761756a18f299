"""Buckets: coverage of every size, bounded waste, minimal number."""

from __future__ import annotations

import numpy as np
from cuts.latency.buckets import Plateau, buckets, plateaus
from hypothesis import given
from hypothesis import strategies as st

times = st.lists(st.floats(1.0, 100.0), min_size=1, max_size=9)


@given(times, st.sampled_from([0.0, 0.05, 0.5]))
def test_buckets_cover_every_size_within_allowed_waste(us: list[float], tolerance: float) -> None:
    found = buckets(range(len(us)), np.array(us), tolerance)
    assert [s for each in found for s in range(each.first, each.last + 1)] == list(range(len(us)))
    for each in found:
        assert each.us == us[each.last]
        assert each.waste == each.us / min(us[each.first : each.last + 1]) - 1
        assert each.waste <= tolerance + 1e-9


@given(times)
def test_no_division_into_fewer_buckets_is_allowed(us: list[float]) -> None:
    allowed = 0.3

    def fewest(begin: int) -> int:
        if begin == len(us):
            return 0
        ends = [e for e in range(begin, len(us)) if us[e] <= (1 + allowed) * min(us[begin : e + 1])]
        return 1 + min(fewest(e + 1) for e in ends)

    assert len(buckets(range(len(us)), np.array(us), allowed)) <= fewest(0)


def test_steps_of_a_tile_are_buckets() -> None:
    sizes = range(1, 257)
    us = np.array([-(-s // 64) * 10.0 for s in sizes])
    assert [each.last for each in buckets(sizes, us)] == [64, 128, 192, 256]


def test_plateaus_are_runs_of_equal_labels() -> None:
    assert plateaus([8, 9, 10, 12], ["a", "a", "b", "b"]) == (Plateau(8, 9, 0, 2), Plateau(10, 12, 2, 4))
