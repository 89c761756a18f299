"""Launch sequences in parts: inputs are released after their last part.

Outputs of a part are allocated before it is launched. A caller that gives inputs up, as PyTorch does tensors that it
saved for a backward graph, releases them after the last part that reads them:

    launches 0-3 read x        part 0: launches 0-3        x is released        part 1: launches 4-9, outputs y, z

Large intermediates get blocks of their own where that lowers the memory further: they live for the parts that touch
them, and a whole scratch block until the last one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from attrs import evolve, frozen

from ...backends import SequencePlan
from ...backends.library import DIALECT
from ..plan import Plan
from .hazards import MAX_CONCURRENT_LAUNCHES
from .placed_plan import SCRATCH, PlacedPlan, place_over_blocks

#: Most parts of a sequence: each is a launch for the driver, some microseconds.
MAX_PARTS = 4
#: Least bytes, and part of the memory of a call, that a division saves.
MIN_SAVED_BYTES, MIN_SAVED_PART = 16 << 20, 1 / 16
#: Most intermediates with a block of their own, whose addresses are set in each call.
MAX_TEMPORARY_BLOCKS = 8
#: Part of the greatest saving for which fewer parts are chosen.
MIN_SAVING_RATIO = 0.9


@frozen
class SequencePart:
    """Part of a launch sequence, with its kernels by number.

    `allocated` are the outputs and large intermediates first touched in it, by their position among these blocks;
    `released` the moving inputs, and `finished` the intermediates, that no later part touches.
    """

    sequence: SequencePlan
    kernels: tuple[int, ...]
    allocated: tuple[int, ...]
    released: tuple[int, ...]
    finished: tuple[int, ...] = ()


@frozen
class _Blocks:
    """Bytes of moving inputs and of outputs, by the launch that touches each last or first; intermediates have both."""

    launches: int
    ends: Mapping[int, int]
    begins: Mapping[int, int]
    sizes: tuple[int, ...]

    def memory(self, launch: int) -> int:
        """Return bytes of inputs read from a launch on, and earlier outputs."""
        lives = (b for b in self.every if self.begins.get(b, -1) < launch <= self.ends.get(b, launch))
        return sum(self.sizes[block] for block in lives)

    @property
    def every(self) -> Collection[int]:
        """All blocks."""
        return {**self.ends, **self.begins}.keys()

    def peak(self, starts: Sequence[int]) -> int:
        """Return the most bytes of a part."""
        bounds = pairwise((*starts, self.launches))
        fresh = (sum(self.sizes[b] for b, n in self.begins.items() if start <= n < end) for start, end in bounds)
        return max(self.memory(start) + new for start, new in zip(starts, fresh, strict=True))

    def divide(self, limit: int) -> list[int] | None:
        """Return the first launch of each part.

        A part has at most `limit` bytes; None where a launch takes more.
        """
        fresh = [0] * self.launches
        for block, first in self.begins.items():
            fresh[first] += self.sizes[block]
        starts, taken = [0], self.memory(0)
        for launch, nbytes in enumerate(fresh):
            if taken + nbytes > limit:
                taken = self.memory(launch)
                if launch == starts[-1] or taken + nbytes > limit:
                    return None
                starts.append(launch)
            taken += nbytes
        return starts


def place_in_parts(
    plan: Plan, held: Collection[str], shared: Sequence[str], divide: bool
) -> tuple[PlacedPlan, tuple[SequencePart, ...]]:
    """Return a plan over external buffers and its parts.

    Large intermediates have blocks of their own where that saves enough memory.
    """
    placed = place_over_blocks(plan, held, shared)
    large = _large_intermediates(placed) if divide else ()
    if large:
        other = place_over_blocks(plan, held, shared, temporary=large)
        used, others = _memory(placed), _memory(other)
        if others + max(MIN_SAVED_BYTES, used * MIN_SAVED_PART) <= used:
            placed = other
    return placed, divide_sequence(placed, divide)


def _memory(placed: PlacedPlan) -> int:
    """Return the most bytes of a call in parts."""
    blocks, scratch = _blocks_of(placed), placed.sizes[SCRATCH]
    return scratch + blocks.peak(_starts(blocks, scratch))


def _large_intermediates(placed: PlacedPlan) -> tuple[str, ...]:
    """Return the intermediates that are a large part of a call's memory, the largest first."""
    plan = placed.plan
    if any(kernel.dialect == DIALECT for kernel in plan.kernels):  # routines of libraries are bound to one address
        return ()
    outside = {plan.storages[name].buffer for name in (*plan.inputs, *plan.outputs, *plan.constants)}
    inside = {b: plan.buffers[b].nbytes for b, place in placed.places.items() if place.block == SCRATCH}
    least = max(MIN_SAVED_BYTES, round(_memory(placed) * MIN_SAVED_PART))
    found = sorted((b for b, n in inside.items() if n >= least and b not in outside), key=lambda b: -inside[b])
    return tuple(found[:MAX_TEMPORARY_BLOCKS])


def divide_sequence(placed: PlacedPlan, divide: bool = True) -> tuple[SequencePart, ...]:
    """Return the parts of a plan's sequence.

    It is one where more would save little memory, or without `divide`.
    """
    blocks = _blocks_of(placed)
    starts = _starts(blocks, placed.sizes[1]) if divide else [0]
    return tuple(_parts(placed, blocks, (*starts, len(placed.sequence.order))))


def _blocks_of(placed: PlacedPlan) -> _Blocks:
    sequence = placed.sequence
    order, first = sequence.order, _first_moving(placed)
    temporary = placed.fresh[len(placed.fresh) - len(placed.temporary) :]
    ends = dict.fromkeys((*range(first, first + len(placed.moving)), *temporary), 0)
    begins = dict.fromkeys(placed.fresh, max(len(order) - 1, 0))
    touched = [{place.block for place in sequence.calls[call].iterations[turn]} for call, turn in order]
    edges = ((0, sequence.before), (len(order) - 1, sequence.after))
    uses = [*enumerate(touched), *((n, {c.source.block, c.destination.block}) for n, part in edges for c in part)]
    for number, used in uses:
        for block in used & ends.keys():
            ends[block] = max(ends[block], number)
        for block in used & begins.keys():
            begins[block] = min(begins[block], number)
    return _Blocks(len(order), ends, begins, placed.sizes)


def _first_moving(placed: PlacedPlan) -> int:
    """Return the number of the first block of a moving input; blocks of outputs follow those of inputs."""
    return 2 + len(placed.shared) + len(placed.held)


def _starts(blocks: _Blocks, scratch: int) -> list[int]:
    """Return the first launches of parts that lower the memory of a call enough."""
    whole = sum(blocks.sizes[block] for block in blocks.every)
    least = max(MIN_SAVED_BYTES, round((whole + scratch) * MIN_SAVED_PART))
    if not 1 < blocks.launches <= MAX_CONCURRENT_LAUNCHES or whole <= least:
        return [0]
    unit = max(1, whole >> 10)

    def fits(limit: int, count: int) -> bool:
        starts = blocks.divide(limit)
        return starts is not None and len(starts) <= count

    def lowest(count: int) -> int:
        """Return the least memory of a number of parts, in whole units."""
        return unit * bisect_left(range(1025), True, key=lambda n: fits(n * unit, count))

    best = lowest(MAX_PARTS)
    if whole - best < least:
        return [0]
    enough = whole - (whole - best) * MIN_SAVING_RATIO
    limit = next(low for low in map(lowest, range(2, MAX_PARTS + 1)) if low <= enough)
    return blocks.divide(limit) or [0]


def _parts(placed: PlacedPlan, blocks: _Blocks, bounds: tuple[int, ...]) -> Iterator[SequencePart]:
    sequence, last = placed.sequence, len(bounds) - 2
    inputs, outputs = _first_moving(placed), _first_moving(placed) + len(placed.moving)
    for number, (start, end) in enumerate(pairwise(bounds)):
        order = sequence.order[start:end]
        calls = list(dict.fromkeys(call for call, _ in order))
        kernels = tuple(dict.fromkeys(sequence.calls[call].kernel for call in calls))
        numbers = {kernel: n for n, kernel in enumerate(kernels)}
        waits = sequence.waits and tuple(
            tuple(each - start for each in waited if each >= start) for waited in sequence.waits[start:end]
        )
        part = evolve(
            sequence,
            calls=tuple(evolve(sequence.calls[c], kernel=numbers[sequence.calls[c].kernel]) for c in calls),
            order=tuple((calls.index(call), turn) for call, turn in order),
            before=sequence.before if number == 0 else (),
            after=sequence.after if number == last else (),
            waits=waits,
        )
        whole = number == last
        yield SequencePart(
            part,
            kernels,
            tuple(b - outputs for b, n in blocks.begins.items() if start <= n < end or (whole and n >= end)),
            tuple(b - inputs for b, n in blocks.ends.items() if start <= n < end and b < outputs),
            tuple(b - outputs for b, n in blocks.ends.items() if start <= n < end and b >= outputs),
        )
