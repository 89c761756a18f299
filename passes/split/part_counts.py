"""Numbers of parts of a reduction that are compared."""

from __future__ import annotations

from math import ceil, prod

from ...ir import (
    FusedGroup,
    Reduction,
    Target,
    expr_variables,
    factors,
    is_contraction,
    is_tiled,
    reads,
    variables,
)
from ..geometry import register_chain
from .align_operands import multiplies_by_lanes
from .split_chain import chain_candidates
from .split_columns import column_candidates
from .split_reduction import cuts_of, may_be_divided

#: Results of a block tile, about, of a contraction and where neighbouring results read neighbouring elements (other
#: reductions have a block for each result): with fewer tiles per SM, splitting may pay. Tiles of a contraction that
#: reads each element least often are larger by `CONTRACTION_TILE_FACTOR`.
RESULTS_PER_TILE, COLUMNS_PER_TILE, TILES_PER_SM, CONTRACTION_TILE_FACTOR = 2048, 128, 2, 4
#: Fewest terms that a part keeps, and most parts: of one axis of a contraction, whose parts are tiles, and of another
#: reduction, where 64 blocks are half of a large machine.
MIN_TERMS, MAX_PARTS, MAX_ROWS = 16, 64, 512
#: Fewest elements of parts whose number follows from a length alone: of a contraction, another row, a chain's row.
INVARIANT_DEPTH, INVARIANT_ROW, INVARIANT_COLUMNS = 16384, 8192, 1024
#: Side of a tile of a product by lanes, rounds of its blocks, the share of them that is full, and parts that fill the
#: last one, with fewest terms.
TILE_SIDE, MIN_ROUNDS, MAX_ROUNDS, MIN_FULL_SHARE, MAX_FILLING_PARTS, MIN_FILLING_TERMS = 128, 0.5, 4, 0.93, 12, 256


def part_counts(group: FusedGroup, target: Target) -> tuple[int, ...]:
    """Return the numbers of parts to compare.

    They are those of a group's reduction, or of a chain's columns.
    """
    if target.invariant:
        return tuple(n for n in (invariant_parts(group),) if n > 1)
    return candidates(group, target) or chain_candidates(group, target) or column_candidates(group, target)


def invariant_parts(group: FusedGroup) -> int:
    """Return the number of parts that a length alone determines.

    It is that of a reduction, or of a chain's rows.
    """
    if (chain := register_chain(group)) is not None:
        columns = group.segments[0].axes[chain.column].extent
        return _power_below(columns // INVARIANT_COLUMNS)
    if not may_be_divided(group):
        return 1
    (segment,) = group.segments
    own = [r.name for r in segment.reductions]
    if not any(group.tensors[name].dtype.is_float for name in own):
        return 1
    tiled = any(is_tiled(r, segment.axes, own) for r in segment.reductions)
    terms = prod(v.extent for v in segment.reductions[0].reduce)
    return min(_power_below(terms // (INVARIANT_DEPTH if tiled else INVARIANT_ROW)), MAX_ROWS)


def _power_below(value: int) -> int:
    """Return the largest power of two up to a number, at least 1."""
    return 1 << max(value, 1).bit_length() - 1


def candidates(group: FusedGroup, target: Target) -> tuple[int, ...]:
    """Return the numbers of parts to compare, least first.

    They give every other SM a tile, up to several for each. There are none where the group has tiles enough unsplit,
    large ones if it is a contraction.
    """
    if not may_be_divided(group):
        return ()
    (segment,) = group.segments
    reduction = segment.reductions[0]
    contracts = is_contraction(reduction) and len(segment.reductions) == 1
    tiles = -(-prod(a.extent for a in segment.axes) // _results_per_tile(reduction, contracts))
    large = -(-tiles // CONTRACTION_TILE_FACTOR) if contracts else tiles
    terms = prod(v.extent for v in reduction.reduce)
    filling = filling_parts(group, target)
    if not target.lockstep or large > TILES_PER_SM * target.NUM_SM:
        return filling
    longest = max(v.extent for v in reduction.reduce)
    most = min(terms // MIN_TERMS, 4 * TILES_PER_SM * target.NUM_SM // large)
    limit = min(MAX_PARTS if contracts else MAX_ROWS, most, longest)
    first, *others = reduction.reduce
    if others and first.extent <= MAX_PARTS:  # few images with many rows each
        limit = max(limit, min(most if contracts else MAX_ROWS, most, first.extent * others[0].extent))
    found = [1 << k for k in range(1, 16) if 1 << k <= limit and cuts_of(reduction, 1 << k)]
    several = {p for p in found if p == found[-1] or 2 * tiles * p >= target.NUM_SM}
    return tuple(sorted(several | set(filling)))


def filling_parts(group: FusedGroup, target: Target) -> tuple[int, ...]:
    """Return the number of parts whose tiles fill the last round.

    It is for products by lanes; none where tiles of the whole fill it.
    """
    if len(group.segments) != 1 or len(group.segments[0].reductions) != 1:
        return ()
    if target.invariant or not target.lockstep:
        return ()
    (segment,) = group.segments
    (reduction,) = segment.reductions
    if not (is_contraction(reduction) and multiplies_by_lanes(group) and may_be_divided(group)):
        return ()
    axes, sides = set(segment.axes), [expr_variables(factor) for factor in factors(reduction.body)]
    common = set.intersection(axes, *sides)
    rounds = prod(v.extent for v in common) / target.NUM_SM
    for side in sides:
        rounds *= -(-prod(v.extent for v in (axes & side) - common) // TILE_SIDE)
    terms = prod(v.extent for v in reduction.reduce)
    if not MIN_ROUNDS < rounds <= MAX_ROUNDS or rounds / ceil(rounds) >= MIN_FULL_SHARE:
        return ()
    several = range(2, min(MAX_FILLING_PARTS, terms // MIN_FILLING_TERMS) + 1)
    filling = [p for p in several if p * rounds / ceil(p * rounds) >= MIN_FULL_SHARE and cuts_of(reduction, p)]
    even = [p for p in filling if any(v.extent % p == 0 for v in reduction.reduce)]
    return (*even, *filling)[:1]


def _results_per_tile(reduction: Reduction, contracts: bool) -> int:
    """Return about how many results a block computes: those that share loads or cache lines."""
    if contracts:
        return RESULTS_PER_TILE
    innermost = {v for r in reads(reduction.body) if r.indices for v in variables(r.indices[-1])}
    return COLUMNS_PER_TILE if innermost and not innermost & set(reduction.reduce) else 1
