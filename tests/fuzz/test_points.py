"""Random points of sums of products: batches by number, places of operands."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cuts.backends.devices import find_target
from cuts.ir.compiled import Storage
from cuts.passes.schedule.space import make_space
from cuts.tests.fuzz.campaign.pointing import count_kinds
from cuts.tests.fuzz.points import PointCase, draw_cases

from ..kernels.cases import legal_points
from ..kernels.test_bulk_copies import with_tma
from ..kernels.test_matrix_instructions import _device, check
from ..kernels.test_warpgroup_products import SMALL_SHARED, halves
from ..needs import needs_opencl

H200 = find_target("cuda:h200")


def test_the_service_opens_no_device() -> None:
    """Workers are forks of a process that imports both modules."""
    modules = "cuts.tests.fuzz.service, cuts.tests.fuzz.__main__"
    listing = f"import sys, {modules}; print([m for m in sys.modules if '.test_' in m])"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_batch_is_the_same_again() -> None:
    first, second = list[PointCase](), list[PointCase]()
    for found in (first, second):
        draw_cases(3, 1, H200, found.append, 5)
    assert len(first) == 5
    assert [(c.kind, c.schedule, c.storages) for c in first] == [(c.kind, c.schedule, c.storages) for c in second]
    assert sum(count_kinds({str(n): c.kind for n, c in enumerate(first)}).values()) >= 15


@needs_opencl
@pytest.mark.parametrize(
    "place", [Storage("a", 8, (0, 72, 1)), Storage("a", 1, (0, 65, 1)), Storage("c", 0, (0, 1, 80))]
)
def test_operands_with_pitches_and_offsets_opencl(place: Storage) -> None:
    """Copies by threads replace boxes where a place has none."""
    group = halves((1, 64, 64, 64), (True, True))
    structure = next(t for t in make_space(group, SMALL_SHARED).templates if t.segments[0].bulk)
    schedule = legal_points(make_space(group, SMALL_SHARED), structure, 0, 1)[0]
    check(_device("opencl"), SMALL_SHARED, group, with_tma(schedule, 1), {place.buffer: place})
