"""The vectorised rules and counts agree with the scalar ones.

They are compared point by point.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.passes.lowering import lower
from cuts.passes.model import features_of
from cuts.passes.model.lower_bound import lower_bound
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.selection.enumerate import columns_at, evaluate, to_schedule
from cuts.passes.schedule.space import make_space
from hypothesis import given, settings
from hypothesis import strategies as st

from .groups import ALL

TARGETS = {t.name: t for t in (find_target("cuda:h200"), find_target("opencl"))}


@cache
def space_of(name, target, coarse):
    """Return the space of one of the groups."""
    return make_space(ALL[name], TARGETS[target], coarse)


@st.composite
def points(draw):
    """Draw a group, a target, thinning, a structure and a point.

    The point has a name and a number.
    """
    key = draw(st.sampled_from(sorted(ALL))), draw(st.sampled_from(sorted(TARGETS))), draw(st.booleans())
    structures = space_of(*key).templates
    position = draw(st.integers(0, len(structures) - 1))
    return key, position, draw(st.integers(0, structures[position].size - 1))


@given(points())
@settings(max_examples=300, deadline=None)
def test_vectorised_counts_equal_scalar_ones(point):
    key, position, number = point
    space = space_of(*key)
    structure = space.templates[position]
    start = sum(s.size for s in space.templates[:position])
    batch = evaluate(space, structure, columns_at(structure, np.asarray([number])), start)
    schedule = to_schedule(space, start + number)
    assert int(np.max(batch.features.threads)) == schedule.threads
    assert int(np.max(batch.features.grid)) == schedule.blocks
    reasons = check_schedule(space.group, schedule, space.target)
    if not reasons:
        kernel = lower(space.group, schedule, {}, space.target)
        assert int(np.max(batch.features.shared)) == sum(buffer.nbytes for buffer in kernel.shared)
    if not np.any(batch.illegal["check_tiles_several"]):  # such a tile has no layout order that a schedule could tell
        scalar = features_of(space.group, schedule, space.target)
        for name in (
            "shared",
            "registers",
            "body",
            "flops",
            "issue",
            "wavefronts",
            "bytes",
            "fetched",
            "stored",
            "transactions",
            "chain",
        ):
            assert float(np.max(getattr(batch.features, name))) == pytest.approx(
                float(np.max(getattr(scalar, name)))
            ), name
    assert bool(batch.legal[0]) == (not reasons), (reasons, {n: bool(np.max(r)) for n, r in batch.illegal.items()})
    time = float(np.max(lower_bound(batch.features, space.target).time))
    assert time >= space.target.launch_time
