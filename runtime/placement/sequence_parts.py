"""Launch sequences in parts: memory is allocated and released between them.

Outputs of a part are allocated before it is launched. A caller that gives inputs up, as PyTorch does tensors that it
saved for a backward graph, releases them after the last part that reads them:

    launches 0-3 read x        part 0: launches 0-3        x is released        part 1: launches 4-9, outputs y, z

Intermediates of the same first and last part share a block, which lives for these parts:

    part 0 writes a, b and reads a; part 1 reads b, writes and reads c    ->    blocks (a) (b) (c): b and c meet, not a
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from ...backends import SequencePlan
from ...backends.library import DIALECT
from ..plan import Plan
from .hazards import MAX_CONCURRENT_LAUNCHES
from .placed_plan import SCRATCH, PlacedPlan, place_over_blocks

#: Most parts of a sequence: each is a launch for the driver, some microseconds.
MAX_PARTS = 12
#: Windows of launches; two launches in each may begin a part.
MAX_WINDOWS = 48
#: Least bytes, and part of the memory of a call, that a division saves.
MIN_SAVED_BYTES, MIN_SAVED_PART = 16 << 20, 1 / 16
#: Part of the greatest saving for which fewer parts are chosen.
MIN_SAVING_RATIO = 0.95

#: First and last launch that touch memory.
Span: TypeAlias = tuple[int, int]
IntArray: TypeAlias = NDArray[Any]


@frozen
class SequencePart:
    """Part of a launch sequence, with its kernels by number.

    `allocated` are the outputs and intermediates first touched in it, by position among fresh blocks; `finished` the
    intermediates, and `released` the moving inputs, that no later part touches.
    """

    sequence: SequencePlan
    kernels: tuple[int, ...]
    allocated: tuple[int, ...]
    released: tuple[int, ...]
    finished: tuple[int, ...] = ()


@frozen(eq=False)
class LaunchMemory:
    """Bytes by launch: inputs still read, and outputs so far; intermediates.

    An intermediate is a row of `inside`: its first launch, its last launch, its bytes.
    """

    given: IntArray
    made: IntArray
    inside: IntArray

    def starts(self) -> list[int]:
        """Return the first launches of parts.

        These are as few as save almost as much as any.
        """
        bounds = self._boundaries()
        costs = np.array([[self._peak(a, b) if a < b else np.inf for b in bounds] for a in bounds])
        peaks, before = [costs[0]], list[IntArray]()
        for _ in range(MAX_PARTS - 1):
            both = np.maximum(peaks[-1][:, None], costs)
            before.append(both.argmin(0))
            peaks.append(both.min(0))
        found = [float(each[-1]) for each in peaks]
        enough = found[0] - (found[0] - min(found)) * MIN_SAVING_RATIO
        place, starts = len(bounds) - 1, list[int]()
        for earlier in reversed(before[: next(n for n, peak in enumerate(found) if peak <= enough)]):
            place = int(earlier[place])
            starts.append(int(bounds[place]))
        return [0, *reversed(starts)]

    def _boundaries(self) -> IntArray:
        """Return launches where parts may begin, and the end.

        They are those of each window that few intermediates cross, or before which most outputs begin.
        """
        count = len(self.given)
        first, last, nbytes = self.inside.T
        crossing = _live(count, first + 1, last, nbytes)
        fresh = np.diff(self.made, prepend=0)
        windows = np.array_split(np.arange(1, count), min(MAX_WINDOWS, count - 1))
        found = [window[each] for window in windows for each in (crossing[window].argmin(), fresh[window].argmax())]
        return np.unique([0, *found, count])

    def _peak(self, start: int, end: int) -> int:
        """Return the most bytes of a part.

        Intermediates that live outside of it, too, have memory of their own.
        """
        first, last, nbytes = self.inside.T
        touched = (first < end) & (last >= start)
        local = touched & (first >= start) & (last < end)
        most = _live(end - start, first[local] - start, last[local] - start, nbytes[local]).max()
        return int(self.given[start] + self.made[end - 1] + nbytes[touched & ~local].sum() + most)


def _live(count: int, first: IntArray, last: IntArray, nbytes: IntArray) -> IntArray:
    """Return the live bytes at each launch."""
    changes = np.zeros(count + 2, np.int64)
    np.add.at(changes, first, nbytes)
    np.add.at(changes, last + 1, -nbytes)
    return changes.cumsum()[:count]


def place_in_parts(
    plan: Plan, held: Collection[str], shared: Sequence[str], divide: bool = True
) -> tuple[PlacedPlan, tuple[SequencePart, ...]]:
    """Return a plan over external buffers, and its parts.

    It is one part where more would save little memory, or without `divide`.
    """
    placed = place_over_blocks(plan, held, shared)
    whole = divide_sequence(placed, [0])
    used = peak_memory(placed, whole)
    if not divide or used <= MIN_SAVED_BYTES or not 1 < len(placed.sequence.order) <= MAX_CONCURRENT_LAUNCHES:
        return placed, whole
    bound = any(kernel.dialect == DIALECT for kernel in plan.kernels)  # routines of libraries, to one address
    spans = {} if bound else _intermediates(placed)
    starts = launch_memory(placed, spans).starts()
    other = place_over_blocks(plan, held, shared, temporary=_by_parts(spans, starts))
    parts = divide_sequence(other, starts)
    least = max(MIN_SAVED_BYTES, round(used * MIN_SAVED_PART))
    return (other, parts) if peak_memory(other, parts) + least <= used else (placed, whole)


def peak_memory(placed: PlacedPlan, parts: Iterable[SequencePart]) -> int:
    """Return the most bytes of a call in parts.

    Constants and held inputs do not count.
    """
    inputs, fresh = _first_moving(placed), placed.fresh
    live, most = {SCRATCH, *range(inputs, inputs + len(placed.moving))}, 0
    for part in parts:
        live |= {fresh[n] for n in part.allocated}
        most = max(most, sum(placed.sizes[block] for block in live))
        live -= {inputs + n for n in part.released} | {fresh[n] for n in part.finished}
    return most


def launch_memory(placed: PlacedPlan, inside: Mapping[str, Span]) -> LaunchMemory:
    """Return the bytes at each launch; `inside` are the spans of intermediates."""
    count, first = len(placed.sequence.order), _first_moving(placed)
    spans, sizes = _block_spans(placed), placed.sizes
    moving = [(0, spans[b][1], sizes[b]) for b in range(first, first + len(placed.moving))]
    fresh = [(spans[b][0], count - 1, sizes[b]) for b in placed.fresh]
    between = [(*span, placed.plan.buffers[name].nbytes) for name, span in inside.items()]
    given, made, table = (np.array(part, np.int64).reshape(-1, 3) for part in (moving, fresh, between))
    return LaunchMemory(_live(count, *given.T), _live(count, *made.T), table)


def _by_parts(spans: Mapping[str, Span], starts: Sequence[int]) -> list[list[str]]:
    """Return the intermediates of each first and last part."""
    found: dict[Span, list[str]] = {}
    for name, (first, last) in spans.items():
        found.setdefault((bisect_right(starts, first), bisect_right(starts, last)), []).append(name)
    return list(found.values())


def _intermediates(placed: PlacedPlan) -> dict[str, Span]:
    """Return the spans of buffers in the scratch block, except copies of inputs and outputs."""
    plan, found = placed.plan, dict[str, Span]()
    outside = {plan.storages[name].buffer for name in (*plan.inputs, *plan.outputs)}
    for launch, (step, _) in enumerate(placed.sequence.order):
        for buffer in {plan.storages[tensor].buffer for tensor in plan.steps[step].tensors} - outside:
            if placed.places[buffer].block == SCRATCH:
                found[buffer] = found.get(buffer, (launch, launch))[0], launch
    return found


def _first_moving(placed: PlacedPlan) -> int:
    """Return the number of the first block of a moving input; blocks of outputs follow those of inputs."""
    return 2 + len(placed.shared) + len(placed.held)


def _block_spans(placed: PlacedPlan) -> dict[int, Span]:
    """Return the spans of moving inputs and fresh blocks; untouched inputs end first, other blocks begin last."""
    sequence, inputs, last = placed.sequence, _first_moving(placed), max(len(placed.sequence.order) - 1, 0)
    touched = [{place.block for place in sequence.calls[call].iterations[turn]} for call, turn in sequence.order]
    edges = ((0, sequence.before), (last, sequence.after))
    uses = [*enumerate(touched), *((n, {c.source.block, c.destination.block}) for n, part in edges for c in part)]
    found: dict[int, Span] = {}
    for launch, used in uses:
        for block in used:
            known = found.get(block, (launch, launch))
            found[block] = min(known[0], launch), max(known[1], launch)
    moving, fresh = dict.fromkeys(range(inputs, inputs + len(placed.moving)), (0, 0)), placed.fresh
    return moving | dict.fromkeys(fresh, (last, last)) | found


def divide_sequence(placed: PlacedPlan, starts: Sequence[int]) -> tuple[SequencePart, ...]:
    """Return the parts of a plan's sequence that begin at some launches."""
    sequence, spans = placed.sequence, _block_spans(placed)
    inputs, fresh = _first_moving(placed), placed.fresh
    outputs, temporary = inputs + len(placed.moving), len(placed.sizes) - len(placed.temporary)
    bounds = [*starts, max(len(sequence.order), 1)]

    def ending(start: int, end: int, first: int, blocks: Iterable[int]) -> tuple[int, ...]:
        return tuple(b - first for b in blocks if start <= spans[b][1] < end)

    def part(number: int, start: int, end: int) -> SequencePart:
        order = sequence.order[start:end]
        calls = list(dict.fromkeys(call for call, _ in order))
        kernels = tuple(dict.fromkeys(sequence.calls[call].kernel for call in calls))
        numbers = {kernel: n for n, kernel in enumerate(kernels)}
        waits = sequence.waits and tuple(
            tuple(each - start for each in waited if each >= start) for waited in sequence.waits[start:end]
        )
        launched = evolve(
            sequence,
            calls=tuple(evolve(sequence.calls[c], kernel=numbers[sequence.calls[c].kernel]) for c in calls),
            order=tuple((calls.index(call), turn) for call, turn in order),
            before=sequence.before if number == 0 else (),
            after=sequence.after if number == len(starts) - 1 else (),
            waits=waits,
        )
        return SequencePart(
            launched,
            kernels,
            tuple(b - outputs for b in fresh if start <= spans[b][0] < end),
            ending(start, end, inputs, range(inputs, outputs)),
            ending(start, end, outputs, range(temporary, len(placed.sizes))),
        )

    return tuple(part(number, start, end) for number, (start, end) in enumerate(pairwise(bounds)))
