"""Garbage collection is rare while a plan is made and usual afterwards.

Children keep the memory that they free.
"""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from cuts.search import reduced_garbage_collection
from cuts.search.processes import gc_tuning
from cuts.search.processes.child import Child
from cuts.search.processes.gc_tuning import GC_THRESHOLDS


def test_blocks_in_one_another_leave_what_was_there() -> None:
    before = gc.get_threshold()
    with reduced_garbage_collection():
        with pytest.raises(ValueError, match="inside"), reduced_garbage_collection():
            raise ValueError("inside")
        assert gc.get_threshold() == GC_THRESHOLDS
    assert gc.get_threshold() == before


def test_small_block_scans_and_freezes_no_existing_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Much may be there, and each compilation would pay for it."""
    for name in ("get_freeze_count", "freeze", "unfreeze", "collect", "get_objects"):
        monkeypatch.setattr(gc, name, lambda *_: pytest.fail("it is as slow as there is much"))
    with reduced_garbage_collection():
        pass


def test_frozen_objects_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting walks through all of them, and they stay."""
    counted = []
    monkeypatch.setattr(gc_tuning, "_ACTIVE", gc_tuning._ActiveBlocks())
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, 1000))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(True) or 1)
    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda: pytest.fail("other code froze objects"))
    for _ in range(2):
        with reduced_garbage_collection():
            pass
    assert len(counted) == 1


#: Prints the kinds of searches after a block that made as much as there was, and the frozen objects then.
SEARCHES = """
import gc
import sys

from cuts.search.processes import gc_tuning, reduced_garbage_collection

gc_tuning.GC_THRESHOLDS = 500, 2, 1000
if "freeze" in sys.argv:
    gc.freeze()
kept, searched, frozen = [], [], gc.get_freeze_count()
with reduced_garbage_collection():
    kept.extend([n] for n in range(len(gc.get_objects()) + frozen))
gc.callbacks.append(lambda phase, facts: searched.append(facts["generation"]))
kept.extend([n] for n in range(3 * gc.get_threshold()[0]))
print(max(searched), gc.get_freeze_count() - frozen)
"""


def test_objects_of_a_block_are_not_searched_afterwards() -> None:
    """Much may be there.

    Each compilation would pay for it with a search of everything.
    """
    assert after_a_block() == ["0", "0"]


def test_frozen_objects_stay_frozen() -> None:
    assert after_a_block("freeze")[1] == "0"


def after_a_block(*facts: str) -> list[str]:
    """Return the output of `SEARCHES`: these tests leave their own garbage alone."""
    command = [sys.executable, "-c", SEARCHES, *facts]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries have no such option")
def test_child_gets_repeatedly_requested_memory_once() -> None:
    child = Child("cuts.tests.search.services:Slow")
    try:
        few, many = (child.call(20.0, "faults", times) for times in (2, 20))
    finally:
        child.close()
    assert many <= few + 100
