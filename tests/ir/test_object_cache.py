"""Values of objects by identity."""

from __future__ import annotations

import gc
from weakref import ref

from attrs import frozen
from cuts.ir import ObjectCache


@frozen
class Item:
    """An object that equals others."""

    number: int = 0


def test_equal_objects_have_values_of_their_own() -> None:
    cache: ObjectCache[str] = ObjectCache()
    one, other = Item(), Item()
    cache[one] = "one"
    assert cache.get(one) == "one"
    assert cache.get(other) is None
    assert cache.find(other, lambda: "other") == "other" == cache.find(other, lambda: "later")
    assert cache.get(one) == "one"


def test_values_are_dropped_with_their_objects() -> None:
    cache: ObjectCache[Item] = ObjectCache()
    one, value = Item(), Item(1)
    cache[one] = value
    before = len(gc.get_referrers(value))
    del one
    gc.collect()
    assert len(gc.get_referrers(value)) == before - 1
    assert all(cache.get(Item()) is None for _ in range(100)), "a new object may have the identity of a deleted one"


def test_a_cache_leaves_without_the_collector() -> None:
    cache: ObjectCache[Item] = ObjectCache()
    key, value = Item(), Item(1)
    cache[key] = value
    gone = ref(value)
    del cache, value
    assert gone() is None
