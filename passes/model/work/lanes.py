"""Work of reduction threads on a row: combination and sorting."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from ....ir import (
    MAX_COUNTED_WORDS,
    MAX_READ_WARPS,
    RADIX_DIGITS,
    DType,
    Reduction,
    block_scales,
    dtype_of,
    factors,
    numbers_per_byte,
    sorts_by_radix,
)
from ...geometry import Count, Geometry, ceil_div
from .totals import Totals

#: Matrix instruction of products of lanes, lanes that share a sum, its issue slots for each one of multiply-adds, and
#: those of the sum of a vector.
LANE_INSTRUCTION, QUAD, PAIRED_SHARE, SUM_ISSUE = "m16n8k16_bf16", 4, 0.3, 4.0
#: Least instructions that compare and select two words of 64 bits, and that move one from another lane.
WORD_COMPARED, WORD_MOVED = 5.0, 4.0
#: Halvings of the interval of a selection of floats, before few keys lie in it; instructions of an element in each, and
#: in all others; those of a thread in each, and latency of a sum over the block.
HALVINGS, KEY_COUNTED, KEY_COLLECTED, HALVING_ISSUE, HALVING_CHAIN = 10.0, 2.0, 10.0, 24.0, 24.0
#: Bits of a digit of a radix sort by warps; instructions, latency and wavefronts of a word in a pass; those of a thread
#: for the counts.
DIGIT_BITS, DIGIT_ISSUE, DIGIT_CHAIN, DIGIT_WAVEFRONTS = 8, 40.0, 25.0, 6.0
COUNTS_ISSUE, COUNTS_CHAIN = 90.0, 40.0


def multiply_lanes(
    totals: Totals, before: Mapping[str, Count], reduction: Reduction, parallel: Count, steps: Count, geometry: Geometry
) -> None:
    """Reduce the counts from `before` on for products of lanes.

    Four lanes then have sums, and their scales, in common. All threads add up the sums of all warps of a row.
    """
    scales, block = block_scales(reduction.body, reduction.reduce)
    parts = [part for part in factors(reduction.body) if part not in scales]
    halves = len(parts) == 2 and {dtype_of(part, totals.group.tensors) for part in parts} == {DType.BF16}
    halves = halves and any(numbers_per_byte(part) > 1 for part in parts)
    if not halves or reduction.combine != "sum" or LANE_INSTRUCTION not in dict(totals.target.atoms):
        return
    vector, quads = geometry.row_vector, np.equal(geometry.reduction_threads % QUAD, 0)
    quads = quads & np.equal(prod(v.extent for v in reduction.reduce) % (geometry.reduction_threads * vector), 0)
    paired = quads & np.greater(vector, 1) & (np.equal(block % (QUAD * vector), 0) if block else True)
    for name in ("issue", "flops"):
        totals.sums[name] = before[name] + totals.since(name, before) * np.where(paired, PAIRED_SHARE, 1.0)
    warp = totals.target.warp_size
    read = parallel * np.where(paired & np.greater(geometry.reduction_threads, warp), geometry.threads / warp, 0.0)
    totals.add("issue", 2.0 * read * geometry.reduction_threads)
    totals.add("issue", np.where(paired, SUM_ISSUE * steps / vector * geometry.threads, 0.0))
    totals.add("wavefronts", read * geometry.reduction_threads / warp)


def combine_lanes(totals: Totals, parallel: Count, issue: int, geometry: Geometry) -> None:
    """Count the reduction across threads, by a function of `issue` slots.

    There are shuffles within a warp, and one exchange between warps for as many instances as lanes of a warp share one;
    a tree for each where the block has no whole warps, or no lanes of a warp share any.
    """
    steps = np.log2(geometry.reduction_threads)
    warp, inside = totals.target.warp_size, geometry.reduction_lanes(totals.target.warp_size)
    single = np.equal(inside, 1) & np.greater(geometry.reduction_threads, MAX_READ_WARPS)
    tree = np.logical_or(not totals.target.lockstep, geometry.threads % warp != 0) | single
    together = np.ceil(parallel / inside) * np.where(np.greater(geometry.reduction_threads, inside), 2.0, 0.0)
    several = np.greater(geometry.reduction_threads, 1)
    totals.add("barriers", np.where(several, np.where(tree, parallel * (steps + 2), together), 0.0))
    totals.add("issue", np.where(several, (1 + issue) * parallel * steps * geometry.threads, 0.0))
    totals.add("chain", np.where(several, issue * parallel * steps, 0.0))
    shuffled = parallel * np.log2(inside) * ceil_div(geometry.threads, warp)
    totals.add("shuffles", np.where(several & np.logical_not(tree), shuffled, 0.0))


def sort_lanes(totals: Totals, held: Count, row: Count, geometry: Geometry, room: int, bits: int) -> None:
    """Count a sort of rows by keys of `bits`, with `held` words.

    Where all threads of a block hold one row, they sort the `room` words that a selection leaves, unless it is 0.
    """
    selects = np.equal(geometry.reduction_threads, geometry.threads) & (room > 0)
    left = np.where(selects, np.maximum(geometry.reduction_threads, 2.0 ** max(room - 1, 1).bit_length()), row)
    counted = room <= MAX_COUNTED_WORDS
    by_radix = np.logical_not(selects) & sorts_by_radix(held, geometry.reduction_threads)
    _sort_words(totals, np.where(selects & counted | by_radix, 0.0, held * left / row), left, geometry)
    _sort_digits(totals, np.where(by_radix, held, 0.0), geometry, bits / DIGIT_BITS)
    warps = geometry.threads / totals.target.warp_size
    each = held * (HALVINGS * KEY_COUNTED + KEY_COLLECTED) + HALVINGS * (HALVING_ISSUE + warps)
    ranked = room * np.ceil(room / geometry.threads) * WORD_COMPARED if counted else 0.0
    totals.add("issue", np.where(selects, each * geometry.threads + ranked * geometry.threads, 0.0))
    totals.add("chain", np.where(selects, HALVINGS * HALVING_CHAIN, 0.0))
    totals.add("barriers", np.where(selects, 2.0 * HALVINGS + 4.0, 0.0))


def _sort_digits(totals: Totals, held: Count, geometry: Geometry, digits: float) -> None:
    """Count a radix sort of rows, `held` words a thread, whose words and counts lie in shared memory."""
    passes = np.where(np.greater(held, 0), digits, 0.0)
    warps = geometry.threads / totals.target.warp_size
    totals.add("issue", passes * (held * DIGIT_ISSUE + COUNTS_ISSUE) * geometry.threads)
    totals.add("chain", passes * (held * DIGIT_CHAIN + COUNTS_CHAIN))
    totals.add("wavefronts", passes * (held * DIGIT_WAVEFRONTS + 3.0 * RADIX_DIGITS) * warps)
    totals.add("barriers", 8.0 * passes)


def _sort_words(totals: Totals, held: Count, row: Count, geometry: Geometry) -> None:
    """Count a sorting network over rows, `held` words a thread.

    Each step compares all words with those of the thread itself, of its warp, or of another warp, through shared
    memory.
    """
    bits, near = np.log2(row), np.log2(geometry.row_vector)
    inside = np.log2(np.minimum(geometry.reduction_threads, totals.target.warp_size))
    steps = bits * (bits + 1) / 2
    # Step d of a stage compares at bit d; bits `first` to `last` are compared once in each later stage.
    across = _steps_between(near + inside, near + np.log2(geometry.reduction_threads), bits)
    shuffled = _steps_between(near, near + inside, bits)
    totals.add("issue", held * (steps * WORD_COMPARED + (shuffled + across) * WORD_MOVED) * geometry.threads)
    totals.add("chain", np.where(np.greater(held, 0), steps * WORD_COMPARED, 0.0))
    totals.add("barriers", 2.0 * held * across)


def _steps_between(first: Count, last: Count, bits: Count) -> Count:
    """Return the steps of a network over `bits` bits that compare at a bit from `first` on, before `last`."""
    return (last - first) * bits - (last * (last - 1) - first * (first - 1)) / 2
