"""Points that the model does not tell apart are tried far from one another."""

from __future__ import annotations

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.passes.schedule import best_points, candidate_of, climb, make_space, spread
from hypothesis import given
from hypothesis import strategies as st

from .groups import matmul, pointwise, softmax

H200 = find_target("cuda:h200")
FLAT = pointwise(64, 512)


def _geometries(points):
    space = make_space(FLAT, H200)
    return {(c.schedule.threads, c.schedule.blocks) for c in (candidate_of(space, p) for p in points)}


@pytest.mark.parametrize("count", [6, 12])
def test_points_of_a_flat_space_have_little_in_common(count, monkeypatch):
    points = best_points(FLAT, H200, "bound", count)
    assert len(set(points)) == count
    assert max(p.score for p in points) <= (1 + climb.ALIKE) * points[0].score
    assert len(_geometries(points)) > count // 2
    monkeypatch.setattr(climb, "FLAT", 1 << 40)
    before = best_points(FLAT, H200, "bound", count)
    assert before[0] == points[0]
    assert len(_geometries(points)) > len(_geometries(before))


@pytest.mark.parametrize("group", [matmul(256, 256, 64), softmax(64, 256)])
def test_points_that_the_model_tells_apart_are_its_best(group):
    points = best_points(group, H200, "bound", 12)
    assert list(points) == sorted(points)


@given(st.integers(1, 40), st.randoms(use_true_random=False))
def test_each_point_is_the_farthest_from_those_before(count, random):
    space = make_space(FLAT, H200)
    points = list(best_points(FLAT, H200, "bound", 400))
    random.shuffle(points)
    chosen = spread.spread(space, points[:60], count)
    assert chosen[0] == points[0] and len(set(chosen)) == count
    assert chosen == spread.spread(space, points[:60], 60)[:count]
    values = dict(zip(points[:60], spread._values(space, points[:60]), strict=True))
    for number in range(1, count):
        away = {p: min(np.abs(values[p] - values[c]).sum() for c in chosen[:number]) for p in points[:60]}
        assert away[chosen[number]] == max(away.values())
