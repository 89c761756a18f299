"""Quasi-affine integer expressions, the indices of tensors.

An `Index` is a sum of integer multiples of *primaries* plus a constant, held in one canonical form, so that equal
expressions compare equal. A primary is a bounded variable, a floor division or a modulo by a positive constant, a clamp
to constants, or the value of an integer tensor element (`Indirect`). Every variable carries its range `[0, extent)`,
therefore bounds and simplification need no context.

Each class of primaries defines `text`, `bounds`, the indices that it is made of (`parts`), its reconstruction from
others (`with_parts`) and its value, given theirs (`of`). `traversal` and `values` use nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from math import gcd
from typing import Any, TypeAlias, Union

import numpy as np
from attrs import evolve, field, frozen


@frozen(cache_hash=True)
class Var:
    """Integer variable in `[0, extent)`, identified by name and extent."""

    name: str
    extent: int

    @property
    def text(self) -> str:
        """The printed form."""
        return self.name

    @property
    def parts(self) -> tuple[Index, ...]:
        """The indices it is made of: none."""
        return ()

    def with_parts(self, parts: tuple[Index, ...]) -> Index:
        """Return the index that is the variable."""
        return as_index(self)

    def bounds(self) -> tuple[int, int]:
        """Least and greatest value."""
        return 0, max(0, self.extent - 1)

    def __add__(self, other: IndexLike) -> Index:
        return as_index(self) + other

    def __mul__(self, factor: int) -> Index:
        return as_index(self) * factor

    __radd__ = __add__
    __rmul__ = __mul__

    def __sub__(self, other: IndexLike) -> Index:
        return as_index(self) - other

    def __floordiv__(self, divisor: int) -> Index:
        return floordiv(as_index(self), divisor)

    def __mod__(self, divisor: int) -> Index:
        return modulo(as_index(self), divisor)


@frozen(cache_hash=True)
class FloorDiv:
    """`floor(num / den)`, `den > 0`; rounds towards minus infinity."""

    num: Index
    den: int

    @property
    def text(self) -> str:
        """The printed form."""
        return f"({self.num.text} // {self.den})"

    @property
    def parts(self) -> tuple[Index, ...]:
        """The indices it is made of."""
        return (self.num,)

    def with_parts(self, parts: tuple[Index, ...]) -> Index:
        """Return the same of another index, simplified."""
        return floordiv(parts[0], self.den)

    def of(self, value: Any) -> Any:
        """Return its value from that of its part: integers or arrays."""
        return value // self.den

    def bounds(self) -> tuple[int, int]:
        """Least and greatest value."""
        low, high = self.num.bounds()
        return low // self.den, high // self.den


@frozen(cache_hash=True)
class Mod:
    """`num mod den` in `[0, den)`, `den > 0`."""

    num: Index
    den: int

    @property
    def text(self) -> str:
        """The printed form."""
        return f"({self.num.text} % {self.den})"

    @property
    def parts(self) -> tuple[Index, ...]:
        """The indices it is made of."""
        return (self.num,)

    def with_parts(self, parts: tuple[Index, ...]) -> Index:
        """Return the same of another index, simplified."""
        return modulo(parts[0], self.den)

    def of(self, value: Any) -> Any:
        """Return its value from that of its part: integers or arrays."""
        return value % self.den

    def bounds(self) -> tuple[int, int]:
        """Least and greatest value."""
        low, high = self.num.bounds()
        if low // self.den == high // self.den:
            return low % self.den, high % self.den
        return 0, self.den - 1


@frozen(cache_hash=True)
class Clamp:
    """`min(max(arg, low), high)`."""

    arg: Index
    low: int
    high: int

    @property
    def text(self) -> str:
        """The printed form."""
        return f"clamp({self.arg.text}, {self.low}, {self.high})"

    @property
    def parts(self) -> tuple[Index, ...]:
        """The indices it is made of."""
        return (self.arg,)

    def with_parts(self, parts: tuple[Index, ...]) -> Index:
        """Return the same of another index, simplified."""
        return clamp(parts[0], self.low, self.high)

    def of(self, value: Any) -> Any:
        """Return its value from that of its part: integers or arrays."""
        return (
            np.clip(value, self.low, self.high)
            if isinstance(value, np.ndarray)
            else min(max(value, self.low), self.high)
        )

    def bounds(self) -> tuple[int, int]:
        """Least and greatest value."""
        low, high = self.arg.bounds()
        return min(max(low, self.low), self.high), min(max(high, self.low), self.high)


@frozen(cache_hash=True)
class Indirect:
    """Element of an integer tensor, in `[0, extent)` by contract.

    A negative element counts from the end (`extent` is added), as ONNX and NumPy do, where `wraps` is set. It may be
    `held`: a value of a row in registers of the instance, as a place in a sorted row.
    """

    tensor: str
    indices: tuple[Index, ...]
    extent: int
    wraps: bool = True
    held: bool = False

    @property
    def text(self) -> str:
        """The printed form."""
        inner = ", ".join(i.text for i in self.indices)
        return f"{self.tensor}[{inner}]"

    @property
    def parts(self) -> tuple[Index, ...]:
        """The indices of the element."""
        return self.indices

    def with_parts(self, parts: tuple[Index, ...]) -> Index:
        """Return the element at another place."""
        return Index(0, ((evolve(self, indices=parts), 1),))

    def bounds(self) -> tuple[int, int]:
        """Least and greatest value."""
        return 0, max(0, self.extent - 1)


Primary: TypeAlias = Union[Var, FloorDiv, Mod, Clamp, Indirect]
IndexLike: TypeAlias = Union["Index", Var, int]


@frozen(cache_hash=True)
class Index:
    """Canonical sum `const + sum(coefficient * primary)`.

    Terms are sorted by text and have non-zero coefficients.
    """

    const: int = 0
    terms: tuple[tuple[Primary, int], ...] = ()
    _text: list[str] = field(factory=list, init=False, eq=False, repr=False)

    @property
    def text(self) -> str:
        """The printed form, as declarations write it."""
        if not self._text:
            self._text.append(_render(self))
        return self._text[0]

    def __str__(self) -> str:
        return self.text

    @property
    def is_const(self) -> bool:
        """Return whether it has one value."""
        return not self.terms

    def bounds(self) -> tuple[int, int]:
        """Return least and greatest value.

        Bounds hold over all variables' ranges and are exact for affine sums.
        """
        low = high = self.const
        for primary, factor in self.terms:
            first, last = primary.bounds()
            low += factor * (first if factor > 0 else last)
            high += factor * (last if factor > 0 else first)
        return low, high

    def coefficient(self, primary: Primary) -> int:
        """Return the factor of a top-level primary, 0 without one."""
        for other, factor in self.terms:
            if other == primary:
                return factor
        return 0

    def __add__(self, other: IndexLike) -> Index:
        other = as_index(other)
        if not other.terms:
            return self if other.const == 0 else Index(self.const + other.const, self.terms)
        if not self.terms:
            return other if self.const == 0 else Index(self.const + other.const, other.terms)
        return _sum(self.const + other.const, [*self.terms, *other.terms])

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        if factor == 0:
            return ZERO
        return Index(self.const * factor, tuple((a, f * factor) for a, f in self.terms))

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: IndexLike) -> Index:
        return self + as_index(other) * -1

    def __floordiv__(self, divisor: int) -> Index:
        return floordiv(self, divisor)

    def __mod__(self, divisor: int) -> Index:
        return modulo(self, divisor)


ZERO = Index()


@lru_cache(maxsize=1 << 16)
def _variable_index(var: Var) -> Index:
    return ZERO if var.extent == 1 else Index(0, ((var, 1),))


def as_index(value: IndexLike) -> Index:
    """Convert an integer or a variable to an index.

    A variable of extent 1 is the constant 0.
    """
    if isinstance(value, Index):
        return value
    if isinstance(value, Var):
        return _variable_index(value)
    return Index(int(value))


def primary_index(primary: Primary) -> Index:
    """Return the index that is one primary."""
    return as_index(primary) if isinstance(primary, Var) else Index(0, ((primary, 1),))


def _render(index: Index) -> str:
    parts: list[str] = []
    for primary, factor in index.terms:
        body = primary.text if abs(factor) == 1 else f"{abs(factor)}*{primary.text}"
        if not parts:
            parts.append(body if factor > 0 else f"-{body}")
        else:
            parts.append(f"{'+' if factor > 0 else '-'} {body}")
    if index.const or not parts:
        parts.append(str(index.const) if not parts else f"{'+' if index.const > 0 else '-'} {abs(index.const)}")
    return " ".join(parts)


def _sum(const: int, terms: Iterable[tuple[Primary, int]]) -> Index:
    factors: dict[Primary, int] = {}
    for primary, factor in terms:
        factors[primary] = factors.get(primary, 0) + factor
    kept = {a: f for a, f in factors.items() if f}
    extra = _recombine(kept)
    if extra is not None:
        return extra + const
    return Index(const, tuple(sorted(kept.items(), key=lambda item: item[0].text)))


def _recombine(factors: dict[Primary, int]) -> Index | None:
    """Rewrite `c*d*(a//d) + c*(a%d)` to `c*a` and `c*d*((a//d)%m) + c*(a%d)` to `c*(a%(d*m))`, once, or return None."""
    if not any(isinstance(a, Mod) for a in factors):
        return None
    for low, factor in factors.items():
        if not isinstance(low, Mod):
            continue
        quotient = floordiv(low.num, low.den)
        if len(quotient.terms) != 1 or quotient.const or quotient.terms[0][1] != 1:
            continue
        base = quotient.terms[0][0]
        for high, high_factor in factors.items():
            if high_factor != factor * low.den or high is low:
                continue
            if high == base:
                joined = low.num
            elif isinstance(high, Mod) and high.num == quotient:
                joined = modulo(low.num, low.den * high.den)
            else:
                continue
            rest = [(a, f) for a, f in factors.items() if a not in (low, high)]
            return _sum(0, rest) + joined * factor
    return None


def _split(index: Index, divisor: int) -> tuple[Index, Index]:
    """Split into (quotient part, remainder): index = divisor * quotient + remainder."""
    quotient = Index(index.const // divisor, tuple((a, f // divisor) for a, f in index.terms if f % divisor == 0))
    remainder = Index(index.const % divisor, tuple((a, f) for a, f in index.terms if f % divisor))
    return quotient, remainder


def _drop_small(index: Index, divisor: int) -> tuple[Index, Index]:
    """Split into (A, b) with g | A, g | divisor and `0 <= b < g` for the largest g > 1 found, else (index, 0)."""
    candidates = sorted({gcd(abs(f), divisor) for _, f in index.terms} - {1}, reverse=True)
    for g in candidates:
        small = Index(index.const % g, tuple((a, f) for a, f in index.terms if f % g))
        if small.terms or small.const:
            low, high = small.bounds()
            if low >= 0 and high < g:
                return index - small, small
    return index, ZERO


@lru_cache(maxsize=1 << 17)
def floordiv(index: Index, divisor: int) -> Index:
    """Return `index // divisor` (floor), simplified by the ranges of its variables."""
    assert divisor > 0
    if divisor == 1:
        return index
    quotient, rest = _split(index, divisor)
    low, high = rest.bounds()
    if low // divisor == high // divisor:
        return quotient + low // divisor
    rest, _ = _drop_small(rest, divisor)
    common = gcd(divisor, *(abs(f) for _, f in rest.terms))
    if common > 1:
        rest = Index(rest.const // common, tuple((a, f // common) for a, f in rest.terms))
        return quotient + floordiv(rest, divisor // common)
    if len(rest.terms) == 1 and rest.terms[0][1] == 1 and rest.const == 0:
        primary = rest.terms[0][0]
        if isinstance(primary, FloorDiv):
            return quotient + floordiv(primary.num, primary.den * divisor)
        if isinstance(primary, Mod) and primary.den % divisor == 0:
            return quotient + modulo(floordiv(primary.num, divisor), primary.den // divisor)
    line = _line(rest, lambda value: value // divisor)
    if line is not None:
        return quotient + line
    for g in sorted({gcd(abs(f), divisor) for _, f in rest.terms} - {1}, reverse=True):
        # floor((g*a + e) / (g*d)) = floor((a + floor(e / g)) / d): one form for the two that `delinearise` writes.
        coarse = Index(rest.const // g, tuple((a, f // g) for a, f in rest.terms if f % g == 0))
        fine = Index(rest.const % g, tuple((a, f) for a, f in rest.terms if f % g))
        return quotient + floordiv(coarse + floordiv(fine, g), divisor // g)
    return quotient + Index(0, ((FloorDiv(rest, divisor), 1),))


@lru_cache(maxsize=1 << 17)
def modulo(index: Index, divisor: int) -> Index:
    """Return `index mod divisor`, simplified by the ranges of its variables.

    The value is in `[0, divisor)`.
    """
    assert divisor > 0
    if divisor == 1:
        return ZERO
    _, rest = _split(index, divisor)
    low, high = rest.bounds()
    if low // divisor == high // divisor:
        return rest - low // divisor * divisor
    rest, small = _drop_small(rest, divisor)
    common = gcd(divisor, *(abs(f) for _, f in rest.terms))
    if common > 1 and rest.const % common == 0:
        rest = Index(rest.const // common, tuple((a, f // common) for a, f in rest.terms))
        return modulo(rest, divisor // common) * common + small
    if len(rest.terms) == 1 and rest.terms[0][1] == 1 and rest.const == 0:
        primary = rest.terms[0][0]
        if isinstance(primary, Mod) and primary.den % divisor == 0:
            return modulo(primary.num, divisor) + small
    line = _line(rest, lambda value: value % divisor)
    return (Index(0, ((Mod(rest, divisor), 1),)) if line is None else line) + small


def _line(index: Index, function: Callable[[int], int]) -> Index | None:
    """Return a function of an index of two values as the line through both, None where it may have more values."""
    if len(index.terms) != 1:
        return None
    ((primary, factor),) = index.terms
    low, high = primary.bounds()
    if high - low != 1:
        return None
    first, last = (function(index.const + factor * value) for value in (low, high))
    return Index(first - (last - first) * low, ((primary, last - first),) if last != first else ())


def clamp(index: Index, low: int, high: int) -> Index:
    """Return the index clamped to `[low, high]`.

    An index that never leaves the range stays.
    """
    first, last = index.bounds()
    if low <= first and last <= high:
        return index
    if last <= low or low == high:
        return Index(low)
    if first >= high:
        return Index(high)
    return Index(0, ((Clamp(index, low, high), 1),))


def is_affine(index: Index) -> bool:
    """Return whether every primary is a plain variable."""
    return all(isinstance(a, Var) for a, _ in index.terms)
