"""Garbage is searched for seldom while a plan is made, and as before behind it; children keep what they free."""

from __future__ import annotations

import gc
import sys

import pytest
from cuts.search import seldom_collected
from cuts.search.child import Child
from cuts.search.memory import SELDOM


def test_blocks_in_one_another_leave_what_was_there() -> None:
    before = gc.get_threshold()
    with seldom_collected():
        with pytest.raises(ValueError, match="inside"), seldom_collected():
            raise ValueError("inside")
        assert gc.get_threshold() == SELDOM
    assert gc.get_threshold() == before


def test_nothing_that_there_is_is_walked_through_or_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Much may be there, and each compilation would pay for it."""
    for name in ("get_freeze_count", "freeze", "unfreeze", "collect", "get_objects"):
        monkeypatch.setattr(gc, name, lambda *_: pytest.fail("it is as slow as there is much"))
    with seldom_collected():
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries have no such option")
def test_a_child_gets_memory_once_that_it_asks_for_again_and_again() -> None:
    child = Child("cuts.tests.search.services:Slow")
    try:
        few, many = (child.call(20.0, "faults", times) for times in (2, 20))
    finally:
        child.close()
    assert many <= few + 100
