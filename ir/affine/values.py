"""Values of indices, as integers or NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy.typing as npt

from .index import Index, Indirect, Var

Values: TypeAlias = npt.NDArray[Any]


def index_value(index: Index, leaf: Callable[[Var | Indirect], Any]) -> Any:
    """Return the value of an index.

    `leaf` gives the values of variables and of elements, as integers or as arrays that broadcast.
    """
    total: Any = index.const
    for primary, factor in index.terms:
        value = (
            leaf(primary)
            if isinstance(primary, (Var, Indirect))
            else primary.of(*(index_value(part, leaf) for part in primary.parts))
        )
        total = total + (value if factor == 1 else value * factor)
    return total


def evaluate(
    index: Index, values: Mapping[Var, int], fetch: Callable[[Indirect, tuple[int, ...]], int] | None = None
) -> int:
    """Return an index's integer value under an assignment; `fetch` reads indirect elements."""

    def leaf(primary: Var | Indirect) -> int:
        if isinstance(primary, Var):
            return values[primary]
        assert fetch is not None, "an indirect index needs a fetch function"
        return fetch(primary, tuple(index_value(part, leaf) for part in primary.parts))

    return int(index_value(index, leaf))
