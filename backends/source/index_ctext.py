"""C text of indices and of their guards: equal in every dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from ...ir import Clamp, DType, FloorDiv, Guard, Index, Indirect, Mod, Var, indirects, linearise, row_major, variables


@frozen
class PointerName:
    """Name of a buffer or of registers, element type, shape of registers."""

    name: str
    dtype: DType
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.name


def index_text(index: Index, pointers: Mapping[str, PointerName], *, raw: bool = False) -> str:
    """Return an index as a C expression of type int.

    `pointers` names the buffers of indirect reads.

    An integer of a tensor that is out of its axis's range is clamped, so that no address leaves its tensor; where it is
    compared (`raw`) it equals no index: it is the one before the first or after the last.
    """
    parts: list[str] = []
    for primary, factor in sorted(index.terms, key=lambda term: -abs(term[1])):
        text = _atom_text(primary, pointers, raw)
        body = text if abs(factor) == 1 else f"{text} * {abs(factor)}"
        sign = "-" if factor < 0 else ("+ " if parts else "")
        parts.append(f"{sign}{' ' if sign == '-' and parts else ''}{body}")
    if index.const or not parts:
        sign = "" if not parts else ("+ " if index.const > 0 else "- ")
        parts.append(f"{sign}{abs(index.const) if parts else index.const}")
    return " ".join(parts)


def _atom_text(primary: object, pointers: Mapping[str, PointerName], raw: bool) -> str:
    if isinstance(primary, Var):
        return primary.name
    if isinstance(primary, FloorDiv):
        quotient = f"({_unsigned_text(primary.num, primary.den, pointers, raw)} / {primary.den})"
        shift = _shift(primary.num, primary.den)
        return f"({quotient} - {shift})" if shift else quotient
    if isinstance(primary, Mod):
        return f"({_unsigned_text(primary.num, primary.den, pointers, raw)} % {primary.den})"
    if isinstance(primary, Clamp):
        return f"cuts_clamp({index_text(primary.arg, pointers, raw=raw)}, {primary.low}, {primary.high})"
    assert isinstance(primary, Indirect)
    flat = linearise(primary.indices, row_major(pointers[primary.tensor].shape or (1,)))
    element = f"{pointers[primary.tensor]}[{index_text(flat, pointers)}]"
    if not primary.wraps:
        return f"((int){element})"
    suffix = index_suffix(pointers[primary.tensor].dtype)
    return (
        f"{'cuts_wrap' if raw else 'cuts_index'}{suffix}({element if suffix else f'(int){element}'}, {primary.extent})"
    )


def place_text(place: Indirect, pointers: Mapping[str, PointerName]) -> str:
    """Return the range condition of an indirect index."""
    text = _atom_text(place, pointers, raw=True)
    return f"(unsigned int){text} < {place.extent}u"


def index_suffix(dtype: DType) -> str:
    """Return the suffix of index helpers for an element type.

    Types wider than int have their own.
    """
    return "" if dtype.size < 4 or dtype is DType.I32 else f"_{dtype}"


def _shift(index: Index, divisor: int) -> int:
    """Return multiples of the divisor to add so that a numerator is never negative: C divides towards zero."""
    low, _ = index.bounds()
    return 0 if low >= 0 else -(low // divisor)


def _unsigned_text(index: Index, divisor: int, pointers: Mapping[str, PointerName], raw: bool) -> str:
    return f"({index_text(index + _shift(index, divisor) * divisor, pointers, raw=raw)})"


def guard_text(guards: Sequence[Guard], pointers: Mapping[str, PointerName], conjunction: str = "&&") -> str:
    """Return a conjunction of range conditions.

    Bounds that the variables' ranges prove are left out. With "&" all parts are computed; so they are where no guard
    bounds the places that others look up.
    """
    parts: list[str] = []
    for guard in guards:
        low, high = guard.index.bounds()
        text = index_text(guard.index, pointers, raw=True)
        if low < guard.low and high >= guard.high == guard.low + 1:
            # Lanes compare one number with the constants of an unrolled variable.
            moved = [v for v, factor in guard.index.terms if isinstance(v, Var) and factor == -1]
            least = min(moved, key=lambda v: v.extent) if moved else Index()
            text = index_text(guard.index + least, pointers, raw=True)
            parts.append(f"{text} == {index_text(least + guard.low, pointers, raw=True)}")
            continue
        if low < guard.low:
            parts.append(f"{text} >= {guard.low}")
        if high >= guard.high:
            parts.append(f"{text} < {guard.high}")
    looked_up = [(guard, found) for guard in guards for found in indirects(guard.index)]
    places = {v for _, found in looked_up for index in found.parts for v in variables(index)}
    if looked_up and all(places.isdisjoint(variables(g.index)) for g in guards if not indirects(g.index)):
        conjunction = "&"
    return f" {conjunction} ".join(parts) or "1"
