"""Cache of values by the identity of objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import ref

_Value = TypeVar("_Value")


class ObjectCache(Generic[_Value]):
    """Values by the identity of objects; a value leaves with its object."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[ref[object], _Value]] = {}

    def __setitem__(self, key: object, value: _Value) -> None:
        number, own = id(key), ref(self)  # weak, so that the cache is in no cycle

        def drop(_: object) -> None:
            cache = own()
            if cache is not None:
                cache._entries.pop(number, None)

        self._entries[number] = ref(key, drop), value

    def get(self, key: object) -> _Value | None:
        """Return an object's value."""
        found = self._entries.get(id(key))
        return found[1] if found is not None and found[0]() is key else None

    def find(self, key: object, make: Callable[[], _Value]) -> _Value:
        """Return an object's value, made once."""
        value = self.get(key)
        if value is None:
            self[key] = value = make()
        return value
