"""Launch sequences in parts: inputs are released after their last part.

Outputs of a part are allocated before it is launched. A caller that gives inputs up, as PyTorch does tensors that it
saved for a backward graph, releases them after the last part that reads them:

    launches 0-3 read x        part 0: launches 0-3        x is released        part 1: launches 4-9, outputs y, z
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import pairwise

from attrs import evolve, frozen

from ...backends import SequencePlan
from .hazards import MAX_CONCURRENT_LAUNCHES
from .placed_plan import PlacedPlan

#: Most parts of a sequence: each is a launch for the driver, some microseconds.
MAX_PARTS = 4
#: Least bytes, and part of the memory of a call, that a division saves.
MIN_SAVED_BYTES, MIN_SAVED_PART = 16 << 20, 1 / 16
#: Part of the greatest saving for which fewer parts are chosen.
MIN_SAVING_RATIO = 0.9


@frozen
class SequencePart:
    """Part of a launch sequence, with its kernels by number.

    `allocated` are the outputs first touched in it, by their position among blocks of outputs; `released` the moving
    inputs that no later part touches.
    """

    sequence: SequencePlan
    kernels: tuple[int, ...]
    allocated: tuple[int, ...]
    released: tuple[int, ...]


@frozen
class _Blocks:
    """Bytes of moving inputs and of outputs, by the launch that touches each last or first."""

    launches: int
    ends: Mapping[int, int]
    begins: Mapping[int, int]
    sizes: tuple[int, ...]

    def memory(self, launch: int) -> int:
        """Return bytes of inputs read from a launch on, and earlier outputs."""
        live = sum(self.sizes[block] for block, last in self.ends.items() if last >= launch)
        return live + sum(self.sizes[block] for block, first in self.begins.items() if first < launch)

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
    ends = dict.fromkeys(range(first, first + len(placed.moving)), 0)
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
    whole = sum(blocks.sizes[block] for block in (*blocks.ends, *blocks.begins))
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
            tuple(b - inputs for b, n in blocks.ends.items() if start <= n < end),
        )
