"""Attribute values: numbers, truth values, texts, and lists of one of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, Union

import numpy as np

from ..errors import GraphError, quote

Attribute: TypeAlias = Union[int, float, bool, str, tuple[int, ...], tuple[float, ...], tuple[str, ...]]
_SCALARS = (int, float, bool, str)


def attribute_of(value: Any) -> Attribute:
    """Convert a value to an attribute value.

    Lists become tuples, NumPy's numbers Python's. Raises `ValueError` for values that no attribute can have, such as
    None, a mapping, or a list of mixed types.
    """
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if type(value) in _SCALARS:
        return value  # type: ignore[no-any-return]
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"expected a number, a string, true, false or a list of them, found {value!r:.80}")
    items = [attribute_of(item) for item in value]
    kinds = {type(item) for item in items}
    if kinds == {int, float}:
        return tuple(map(float, items))  # type: ignore[arg-type]
    if len(kinds) > 1 or kinds & {tuple, bool}:
        raise ValueError(f"expected a list of integers, of numbers or of strings, found {value!r:.80}")
    return tuple(items)  # type: ignore[return-value]


def attributes_of(values: Mapping[str, Any]) -> dict[str, Attribute]:
    """Return the attributes of a node.

    Raises `GraphError` for a value that no attribute can have.
    """
    found = {}
    for name, value in values.items():
        try:
            found[name] = attribute_of(value)
        except ValueError as error:
            raise GraphError(f"attribute {quote(name)}: {error}") from error
    return found


def attributes_key(values: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Return a key that is equal for equal attributes, in any order.

    In Python both zeros of a float are equal, and so are 1, 1.0 and true; their keys differ.
    """
    return tuple(sorted((name, repr(value)) for name, value in values.items()))
