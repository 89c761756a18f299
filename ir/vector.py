"""When neighbouring elements may be moved as one vector."""

from __future__ import annotations

from collections.abc import Sequence

from .expr import Guard
from .index import Index, Var
from .walk import substitute


def vector_address(address: Index, var: Var) -> Index | None:
    """Return the address of element 0 if `var` walks neighbours from an aligned start (a multiple of its extent), else
    None.
    """
    if address.coefficient(var) != 1:
        return None
    start = substitute(address, {var: 0})
    if start + var != address:
        return None
    width = var.extent
    if start.const % width or any(f % width for _, f in start.terms):
        return None
    return start


def vector_guards(guards: Sequence[Guard], var: Var) -> tuple[Guard, ...] | None:
    """Return guards that hold for the whole vector or for none of it, or None where one could split it."""
    result: list[Guard] = []
    width = var.extent
    for guard in guards:
        start = substitute(guard.index, {var: 0})
        if start == guard.index:
            result.append(guard)
            continue
        aligned = start.const % width == 0 and all(f % width == 0 for _, f in start.terms)
        if start + var != guard.index or not aligned or guard.low % width or guard.high % width:
            return None
        result.append(Guard(start, guard.low, guard.high))
    return tuple(result)
