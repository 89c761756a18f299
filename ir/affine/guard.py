"""Guards: conditions that bound an index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

from attrs import frozen

from .index import Index, IndexLike, Mod, Var
from .traversal import indirects, substitute, variables

MoveIndex: TypeAlias = Callable[[Index], Index]
MoveGuards: TypeAlias = Callable[[tuple["Guard", ...]], tuple["Guard", ...]]


@frozen(cache_hash=True)
class Guard:
    """The condition `low <= index < high`."""

    index: Index
    low: int
    high: int

    @property
    def always(self) -> bool:
        """Return whether the ranges of the variables prove it."""
        first, last = self.index.bounds()
        return self.low <= first and last < self.high

    @property
    def never(self) -> bool:
        """Return whether the ranges of the variables refute it."""
        first, last = self.index.bounds()
        return last < self.low or self.high <= first

    @property
    def text(self) -> str:
        """The printed form."""
        return f"{self.low} <= {self.index.text} < {self.high}"


def congruence(guard: Guard) -> tuple[Index, int] | None:
    """Return index and period of `index mod period = 0`, else None."""
    if (guard.low, guard.high) != (0, 1) or guard.index.const or len(guard.index.terms) != 1:
        return None
    primary, factor = guard.index.terms[0]
    return (primary.num, primary.den) if isinstance(primary, Mod) and factor == 1 else None


def order_lookups_last(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """Return guards once each, with those that look up elements last.

    They are tested from left to right, and the others bound the lookups.
    """
    return tuple(sorted(dict.fromkeys(guards), key=lambda guard: bool(indirects(guard.index))))


def map_guards(guards: tuple[Guard, ...], move: MoveIndex) -> tuple[Guard, ...]:
    """Replace the indices of guards."""
    return tuple(Guard(move(g.index), g.low, g.high) for g in guards)


def coarsen(guard: Guard, kept: Collection[Var]) -> Guard:
    """Return an equal guard without terms that decide nothing.

    Terms with variables that are `kept` stay.
    Of neighbours that begin at a multiple of their number, all or none lie before another multiple: `8 * t + v < 64` is
    `8 * t < 64`.
    """
    for unit in sorted({abs(factor) for _, factor in guard.index.terms} - {1}):
        large = Index()
        for primary, factor in guard.index.terms:
            large = large if factor % unit else large + primary.with_parts(primary.parts) * factor
        rest = guard.index - large
        first, last = rest.bounds()
        aligned = not guard.low % unit and not guard.high % unit
        if aligned and first >= 0 and last < unit and not variables(rest).intersection(kept):
            return Guard(large, guard.low, guard.high)
    return guard


def live_guards(guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
    """Return the distinct guards that the ranges of variables do not prove."""
    return tuple(dict.fromkeys(g for g in guards if not g.always))


def substitute_guards(guards: tuple[Guard, ...], values: Mapping[Var, IndexLike]) -> tuple[Guard, ...]:
    """Replace variables in guards and drop those that became always true."""
    return live_guards(map_guards(guards, lambda index: substitute(index, values)))
