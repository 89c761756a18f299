"""Numbers that are sums of products of two sizes, fitted to samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from attrs import frozen

from ...ir import SizeSamples


@frozen
class SizeProducts:
    """Sum of multiples of products of at most two dims.

    `{("b", "s"): 2, (): 1}` is `2*b*s + 1`.
    """

    terms: Mapping[tuple[str, ...], int]

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the number for sizes of the dims."""
        return sum(factor * int(np.prod([sizes[name] for name in names])) for names, factor in self.terms.items())


def fit_products(samples: SizeSamples, values: Sequence[int], first: int = 0) -> SizeProducts | None:
    """Return the sum of products with these values, or None.

    They are those at the samples from the number `first` on.
    """
    names = [dim.name for dim in samples.varying]
    kinds: list[tuple[str, ...]] = [(), *((name,) for name in names), *combinations(names, 2)]
    places = samples.samples[first:]
    base = places[-1]
    rows = [[float(np.prod([at[name] - base[name] for name in kind])) for kind in kinds] for at in places]
    if np.linalg.matrix_rank(np.array(rows)) < len(kinds):
        return None
    found = np.rint(np.linalg.lstsq(np.array(rows), np.array(values, float), rcond=None)[0]).astype(np.int64)
    terms: dict[tuple[str, ...], int] = {}
    for kind, factor in zip(kinds, found.tolist(), strict=True):  # (a - a0) * (b - b0), expanded
        for count in range(len(kind) + 1):
            for kept in combinations(kind, count):
                rest = int(np.prod([-base[name] for name in kind if name not in kept]))
                terms[kept] = terms.get(kept, 0) + factor * rest
    made = SizeProducts({names: factor for names, factor in terms.items() if factor})
    fits = all(made.at(sizes) == value for sizes, value in zip(places, values, strict=True))
    return made if fits else None
