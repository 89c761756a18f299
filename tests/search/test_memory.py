"""Garbage is searched for seldom while a plan is made, and as before behind it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from cuts.search import seldom_collected
from cuts.search.memory import SELDOM


@pytest.fixture
def untouched() -> Iterator[None]:
    """Nothing is frozen at first; whatever a test leaves, the others have what they had."""
    usual = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.set_threshold(*usual)
    gc.collect()
    gc.freeze()


def test_blocks_in_one_another_leave_what_was_there(untouched: None) -> None:
    before = gc.get_threshold()
    with seldom_collected():
        with pytest.raises(ValueError, match="inside"), seldom_collected():
            raise ValueError("inside")
        assert gc.get_threshold() == SELDOM
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_what_was_frozen_before_stays_frozen(untouched: None) -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with seldom_collected():
        pass
    assert gc.get_freeze_count() == frozen
