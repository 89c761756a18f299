"""Reads through clamps as a few straight pieces: mirrored and repeated borders.

    x[mirror(i + r - 2, n)]  with t = i + r - 2  is  x[-t] for t < 0, x[t] for 0 <= t < n, x[2 * (n - 1) - t] for t >= n

Each piece is affine and is inverted alone. The inner one reaches every element, the others those near a border, so that
an element gets as many terms as taps read it, and not one for every value that a clamp could take.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from attrs import frozen

from ....ir import Clamp, Index, Var, variables

#: Longest range of an argument that is analysed, and most pieces of a read; others are left whole.
_MAX_ARGUMENT_RANGE, _MAX_PIECES = 1 << 20, 8


@frozen
class Piece:
    """Elements of an affine piece of an index.

    They are `start + slope * (t - first)`, while the argument runs over `count` values.

    The slope is -1, 0 or 1; `argument` is the affine sum `t`.
    """

    argument: Index
    first: int
    count: int
    start: int
    slope: int

    @property
    def lowest(self) -> int:
        """The first element of the piece."""
        return self.start - (self.count - 1 if self.slope < 0 else 0)

    @property
    def length(self) -> int:
        """Number of elements in the piece."""
        return self.count if self.slope else 1


def pieces_of(index: Index) -> tuple[Piece, ...]:
    """Return the pieces of a function of one affine sum.

    The result is empty where it is affine itself, or no such function.
    """
    argument = _argument(index)
    if argument is None:
        return ()
    low, high = argument.bounds()
    if high - low >= _MAX_ARGUMENT_RANGE:
        return ()
    values = _values(index, argument, np.arange(low, high + 1))
    if values is None:
        return ()
    found = tuple(sorted(_runs(values, 0, len(values)), key=lambda run: run[0]))
    made = tuple(Piece(argument, low + at, count, int(values[at]), slope) for at, count, slope in found)
    return made if len(made) <= _MAX_PIECES and all(abs(p.slope) <= 1 for p in made) else ()


def _argument(index: Index) -> Index | None:
    """Return the sum of variables inside the innermost clamp, without its constant."""
    for primary, _ in index.terms:
        if isinstance(primary, Clamp):
            return _argument(primary.arg) or (_plain(primary.arg) if variables(primary.arg) else None)
    return None


def _plain(index: Index) -> Index:
    return Index(0, tuple((a, f) for a, f in index.terms if isinstance(a, Var)))


def _values(index: Index, argument: Index, at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """Return an index for values of its argument; None where it depends on anything else."""
    plain = _plain(index)
    times = plain.terms[0][1] // argument.terms[0][1] if plain.terms else 0
    if plain != argument * times:
        return None
    total = index.const + times * at
    for primary, factor in index.terms:
        if isinstance(primary, Var):
            continue
        inner = _values(primary.arg, argument, at) if isinstance(primary, Clamp) else None
        if inner is None or not isinstance(primary, Clamp):
            return None
        total = total + factor * np.clip(inner, primary.low, primary.high)
    return total


def _runs(values: npt.NDArray[np.int64], low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """Yield runs of equal slope in a range of values, as place, length and slope: the longest first, then its
    neighbours.
    """
    if high - low == 1:
        yield low, 1, 0
    if high - low <= 1:
        return
    steps = np.diff(values[low:high])
    edges = np.flatnonzero(np.diff(steps)) + 1
    starts, ends = np.concatenate([[0], edges]), np.concatenate([edges, [len(steps)]])
    longest = int(np.argmax(ends - starts))
    first, last = low + int(starts[longest]), low + int(ends[longest]) + 1
    yield first, last - first, int(steps[starts[longest]])
    yield from _runs(values, low, first)
    yield from _runs(values, last, high)
