"""Symbolic dimensions: named sizes with a range, and affine extents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from attrs import frozen

from ..errors import UsageError, quote


@frozen
class Dim:
    """Named size from `low` to `high`, both included.

    Computed sizes begin at 0. Raises `UsageError` for an empty range.
    """

    name: str
    low: int
    high: int

    def __attrs_post_init__(self) -> None:
        self.check(0)

    def check(self, least: int = 1) -> Dim:
        """Return the dim.

        Raises `UsageError` where its range is empty or begins below `least`.
        """
        if not least <= self.low <= self.high:
            raise UsageError(
                f"dim {quote(self.name)}: expected a range of sizes from 1, found {self.low}..{self.high}",
                hint="give the least and the greatest size, as in 1..64",
            )
        return self

    def __str__(self) -> str:
        return f"{self.name} in {self.low}..{self.high}"


@frozen
class SymbolicExtent:
    """Affine size `const + sum(coefficient * dim)`.

    Terms are sorted by dim and have non-zero coefficients.
    """

    const: int
    terms: tuple[tuple[str, int], ...] = ()

    @property
    def is_const(self) -> bool:
        """Return whether no dim changes it."""
        return not self.terms

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the size for sizes of the dims."""
        return self.const + sum(factor * sizes[name] for name, factor in self.terms)

    def max_size(self, dims: Sequence[Dim]) -> int:
        """Return the greatest extent in the ranges of dims."""
        factors = dict(self.terms)
        return self.at({dim.name: dim.high if factors.get(dim.name, 0) > 0 else dim.low for dim in dims})

    def __str__(self) -> str:
        parts = [name if factor == 1 else f"{factor}*{name}" for name, factor in self.terms]
        return " + ".join([*parts, *([str(self.const)] if self.const or not parts else [])]).replace("+ -", "- ")


@frozen
class DimFactor:
    """Part of a dim in memory: `extent` of `capacity` positions are there."""

    capacity: int
    extent: SymbolicExtent

    @property
    def is_whole(self) -> bool:
        """Return whether all positions are there."""
        return self.extent.is_const and self.extent.const == self.capacity


#: Layout of a dim: its factors, the outermost first. One that merges others has several, as `[4 * n]` of `[4 * 64]`.
DimLayout: TypeAlias = tuple[DimFactor, ...]


@frozen
class SizeSamples:
    """Sizes of the dims at which a model is imported.

    The first sample has the greatest sizes, the capacity. The second one is the base: each of the next ones differs
    from it in one dim, in the order of `varying`. Further samples check the fit.
    """

    dims: tuple[Dim, ...]
    samples: tuple[Mapping[str, int], ...]

    @property
    def varying(self) -> tuple[Dim, ...]:
        """The dims whose range has several sizes."""
        return tuple(dim for dim in self.dims if dim.low < dim.high)

    @property
    def capacity(self) -> Mapping[str, int]:
        """The greatest sizes."""
        return self.samples[0]

    def fit(self, values: tuple[int, ...]) -> SymbolicExtent | None:
        """Return the affine extent with these values at the samples, or None."""
        base, terms = min(1, len(values) - 1), dict[str, int]()
        for number, dim in enumerate(self.varying, base + 1):
            step = self.samples[number][dim.name] - self.samples[base][dim.name]
            factor, rest = divmod(values[number] - values[base], step)
            if rest:
                return None
            terms |= {dim.name: factor} if factor else {}
        const = values[base] - sum(factor * self.samples[base][name] for name, factor in terms.items())
        extent = SymbolicExtent(const, tuple(sorted(terms.items())))
        fits = all(extent.at(sizes) == value for sizes, value in zip(self.samples, values, strict=True))
        return extent if fits else None


def least_sizes(samples: SizeSamples, least: Mapping[str, int]) -> tuple[Mapping[str, int], ...]:
    """Return the ends of a range other than its greatest sizes.

    All dims have their `least` sizes in the first one, and one dim has it in each other.
    """
    varying = {dim.name: least[dim.name] for dim in samples.varying}
    found = [{**samples.capacity, **some} for some in (varying, *({name: size} for name, size in varying.items()))]
    return tuple(at for n, at in enumerate(found) if at not in (*found[:n], *samples.samples))


def size_samples(dims: tuple[Dim, ...], least: Mapping[str, int]) -> SizeSamples:
    """Return samples of sizes near the greatest ones.

    They lie below these where the model allows (`least` has its smallest sizes), and above them where the dims are
    short: a dim of size 1 broadcasts, so it says nothing about others.
    """
    top = {dim.name: dim.high for dim in dims}
    varying = [dim for dim in dims if dim.low < dim.high]
    if not varying:
        return SizeSamples(dims, (top,))

    def near(dim: Dim, steps: int) -> dict[str, int]:
        floor = max(2, least[dim.name])
        below = dim.high - 2 >= floor
        return {dim.name: max(floor, dim.high - steps) if below else dim.high + steps}

    base = {name: size for dim in varying for name, size in near(dim, 1).items()}
    found = [top, top | base, *(top | base | near(dim, 2) for dim in varying)]
    found += [top | base | near(dim, 3) for dim in varying]
    found += [top | {name: size for dim in varying for name, size in near(dim, 4).items()}]
    return SizeSamples(dims, tuple(found))
