"""Sizes on the command line, and the convolutions that they mean.

Example: `N=16 C=64..512 K=64,96,128 H=56..64:4`. The last size with more than one value is the one that varies along a
curve; of the sizes before it, ranges without a step are cut down to a few values, since each makes a curve of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from attrs import frozen

from ..ir import UsageError
from .convolution import Convolutions, convolution

#: Curves that a range without a step stands for, and the most convolutions of a sweep.
MAX_RANGE_CURVES, MAX_CONVOLUTIONS = 4, 20_000


@frozen
class Curve:
    """Convolutions that differ in one size only.

    `fixed` are the other sizes that were given, `along` its name, `sizes` its values.
    """

    fixed: Mapping[str, int]
    along: str
    sizes: tuple[int, ...]
    layers: Convolutions


@frozen
class _Values:
    values: tuple[int, ...]
    dense: bool = False


def sweep(tokens: Sequence[str]) -> tuple[Curve, ...]:
    """Return the curves that `NAME=VALUES` texts describe.

    Without any range it is a single curve of one layer.

    Raises `UsageError` for texts that are no sizes, sizes given twice, and sweeps that are too large.
    """
    found: dict[str, _Values] = {}
    for token in tokens:
        name, equals, text = token.partition("=")
        if not equals or not name or not text:
            raise UsageError(f"expected sizes like C=64 or K=64..1024, found '{token}'")
        if name in found:
            raise UsageError(f"size '{name}' is given twice")
        found[name] = _values(token, text)
    several = [name for name, each in found.items() if len(each.values) > 1]
    along = several[-1] if several else "K"
    if along not in found:
        convolution({name: each.values[0] for name, each in found.items()})  # says which size is missing
    return tuple(_curves(found, along))


def _curves(found: Mapping[str, _Values], along: str) -> list[Curve]:
    outer = {name: _sample_values(each) for name, each in found.items() if name != along}
    sizes = found[along].values
    total = len(sizes) * int(np.prod([len(values) for values in outer.values()], initial=1.0))
    if total > MAX_CONVOLUTIONS:
        raise UsageError(
            f"{total:,} convolutions are too many, at most {MAX_CONVOLUTIONS:,}", hint="give a step, as in K=64..1024:8"
        )
    curves = []
    for values in product(*outer.values()):
        fixed = dict(zip(outer, values, strict=True))
        rows = [convolution({**fixed, along: size}) for size in sizes]
        curves.append(Curve(fixed, along, sizes, Convolutions(rows)))
    return curves


def _sample_values(each: _Values) -> tuple[int, ...]:
    """Return a few values of a range without a step, evenly spread, both ends among them."""
    if not each.dense or len(each.values) <= MAX_RANGE_CURVES:
        return each.values
    chosen = np.linspace(0, len(each.values) - 1, MAX_RANGE_CURVES).round().astype(int)
    return tuple(each.values[i] for i in chosen)


def _values(token: str, text: str) -> _Values:
    try:
        if ".." not in text:
            return _Values(tuple(dict.fromkeys(int(part) for part in text.split(","))))
        ends, _, step = text.partition(":")
        first, last = (int(part) for part in ends.split(".."))
        by = int(step) if step else 1
    except ValueError:
        raise UsageError(f"expected whole numbers, as in K=64, K=64,96 or K=64..1024:8, found '{token}'") from None
    if by < 1 or last < first:
        raise UsageError(f"the range of '{token}' is empty", hint="write the smaller end first, and a step above 0")
    if (last - first) // by > MAX_CONVOLUTIONS:
        raise UsageError(f"'{token}' has more than {MAX_CONVOLUTIONS:,} values", hint="give a step, as in K=64..1024:8")
    values = tuple(range(first, last + 1, by))
    return _Values(values if values[-1] == last else (*values, last), dense=not step)
