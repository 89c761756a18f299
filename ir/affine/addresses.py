"""Flat addresses of elements, and aligned vectors of neighbouring ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..types import DType
from .guard import Guard, substitute_guards
from .index import ZERO, Index, Var, as_index, floordiv, modulo
from .traversal import substitute

#: Bytes of the widest access that buffers are aligned to.
WIDEST_BYTES = 16
#: Element types whose neighbours are loaded into registers, and stored from them, at once: numbers of neighbours that
#: one access moves, most first.
VECTOR_WIDTHS: Mapping[DType, tuple[int, ...]] = {
    **dict.fromkeys((DType.F64, DType.I64), (2,)),
    **dict.fromkeys((DType.F32, DType.I32), (4, 2)),
    **dict.fromkeys((DType.F16, DType.BF16, DType.F8E4M3, DType.F8E5M2), (8, 4, 2)),
    **dict.fromkeys((DType.I8, DType.U8), (16, 8, 4)),
}


def linearise(indices: Sequence[Index], strides: Sequence[int]) -> Index:
    """Return the flat offset `sum(index * stride)`, in elements."""
    total = ZERO
    for index, stride in zip(indices, strides, strict=True):
        total = total + index * stride
    return total


def delinearise(flat: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """Return the row-major coordinates of a flat index within `shape`.

    It is the inverse of `linearise` there.
    """
    result: list[Index] = []
    step = 1
    for position, extent in reversed(list(enumerate(shape))):
        quotient = floordiv(flat, step)
        result.append(quotient if position == 0 else modulo(quotient, extent))
        step *= extent
    return tuple(reversed(result))


def vector_widths(dtype: DType) -> tuple[int, ...]:
    """Return the vector widths of an element type, widest first.

    A width counts the neighbours that one access moves between memory and registers.
    """
    return VECTOR_WIDTHS.get(dtype, ())


def longest_vector(dtypes: Iterable[DType], nbytes: int) -> int:
    """Return the neighbours that a thread takes at once.

    One access moves `nbytes`: as many as the narrowest numbers among some element types allow, wider ones take several
    accesses.
    """
    narrowest = min((d.size for d in dtypes if d.is_float or d in VECTOR_WIDTHS), default=4)
    return max(nbytes // 4, min(nbytes, WIDEST_BYTES) // narrowest)


def vector_address(address: Index, var: Var) -> Index | None:
    """Return the address of element 0 of an aligned vector.

    `var` walks neighbours from an aligned start (a multiple of its extent); None elsewhere.
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
    """Return guards that hold for whole vectors or for nothing of them.

    None where one could split a vector.
    """
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


def vector_piece(
    address: Index, guards: tuple[Guard, ...], var: Var, lanes: range
) -> tuple[Index, tuple[Guard, ...]] | None:
    """Return address and guards of one vector access.

    It moves the elements `lanes` along a variable. None where these are no aligned vector, or a guard could split it.
    """
    lane = Var(var.name, len(lanes))
    here = {var: as_index(lane) + lanes.start}
    start, whole = vector_address(substitute(address, here), lane), vector_guards(substitute_guards(guards, here), lane)
    return None if start is None or whole is None else (start, whole)
