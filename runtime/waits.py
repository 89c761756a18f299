"""What each launch of a plan waits for: those before it whose memory it reads, or writes over.

Two launches keep their order where both touch an element and one of them writes it. Elements are told apart exactly:
the parts of a concatenation lie between one another in its buffer, and whoever writes one does not wait for whoever
writes another. Where that cannot be told soon, the launches wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from attrs import frozen

from ..backends.library import DIALECT
from ..ir import KernelFunction, Storage, TensorType
from .memory import aligned
from .plan import Plan

#: Most launches of a plan whose order is loosened: what comes before each takes a bit for each of them.
MOST = 4096
#: Steps in which it must be known whether two sets of elements meet.
WORK = 10_000
#: Where every array of an address space begins, as no array begins at 0.
_BEGIN = 1 << 20

#: A number of elements along each axis, and their distances in bytes; the bytes of an element.
Shape: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]


@frozen
class Touching:
    """Elements that a launch touches: at which byte they begin, how they lie, the first byte behind them, and whether
    some are written.
    """

    start: int
    shape: Shape
    end: int
    written: bool

    @property
    def dense(self) -> bool:
        """Whether it touches every byte from its start to its end."""
        _, strides, size = self.shape
        return not strides or strides == (size,)

    def meets(self, other: Touching) -> bool:
        """Whether both touch an element; True where that cannot be told soon."""
        if self.end <= other.start or other.end <= self.start:
            return False
        if self.dense and other.dense:
            return True
        return _meet(self.shape, other.shape, other.start - self.start)


@frozen
class Waits:
    """For each launch in order: the launches that it waits for and that no other of these waits for, and all that have
    ended before it begins, as a number with a bit for each.
    """

    direct: tuple[tuple[int, ...], ...]
    before: tuple[int, ...]

    @property
    def chained(self) -> bool:
        """Whether each launch waits for the one in front of it."""
        return all(before == (1 << number) - 1 for number, before in enumerate(self.before))

    def longest(self, seconds: Sequence[float]) -> float:
        """Return the seconds of the longest way through launches that take so long, were there room for all."""
        ends: list[float] = []
        for each, taken in zip(self.direct, seconds, strict=True):
            ends.append(taken + max((ends[number] for number in each), default=0.0))
        return max(ends, default=0.0)


def waits_of(plan: Plan, apart: bool = False) -> Waits:
    """Return what each launch waits for in the arena of a plan; `apart`, were each buffer there by itself."""
    launches = list(plan.launches())
    begins = _apart(plan) if apart else {name: place.offset for name, place in plan.buffers.items()}
    accesses = [list(accesses_of(plan, step, turn, begins)) for step, turn in launches]
    routines = [number for number, (step, _) in enumerate(launches) if _kernel(plan, step).dialect == DIALECT]
    found = [set(each) for each in _conflicts(accesses)]
    for former, latter in pairwise(routines):  # they share the handle of their library, and with it its workspace
        found[latter].add(former)
    return _reduced(found)


def _kernel(plan: Plan, step: int) -> KernelFunction:
    return plan.kernels[plan.steps[step].kernel]


def _apart(plan: Plan) -> dict[str, int]:
    """Return where buffers begin that share no memory."""
    begins, end = {}, 0
    for name, place in plan.buffers.items():
        begins[name] = end
        end += aligned(place.nbytes)
    return begins


def accesses_of(plan: Plan, step: int, turn: int, begins: Mapping[str, int]) -> Iterator[Touching]:
    """Yield what a step touches at a turn of its loop, where buffers begin at these bytes."""
    called = plan.steps[step]
    kernel = plan.kernels[called.kernel]
    written: dict[str, bool] = {}
    for argument, tensor in zip(kernel.arguments, called.tensors, strict=True):
        if not argument.table and 0 not in kernel.grid:  # tables are never written
            written[tensor] = written.get(tensor, False) or argument.written
    for tensor, changed in written.items():
        type_, storage = plan.types[tensor], plan.storages[tensor]
        if 0 not in type_.shape:
            yield _access(type_, storage, begins[storage.buffer], turn, changed)


def _access(type_: TensorType, storage: Storage, begin: int, turn: int, written: bool) -> Touching:
    size = type_.dtype.size
    start = begin + storage.start(turn) * size
    axes = [(n, stride * size) for n, stride in zip(type_.shape, storage.strides, strict=True) if n > 1 and stride]
    axes.sort(key=lambda axis: axis[1])
    reach = sum((n - 1) * stride for n, stride in axes)
    return Touching(start, _joined(axes, size), start + reach + size, written)


def _joined(axes: Sequence[tuple[int, int]], size: int) -> Shape:
    """Return axes, of which those that follow one another without a gap are one."""
    joined: list[tuple[int, int]] = []
    for n, stride in axes:
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = joined[-1][0] * n, joined[-1][1]
        else:
            joined.append((n, stride))
    return tuple(n for n, _ in joined), tuple(stride for _, stride in joined), size


@frozen
class _Elements:
    """Elements at an address, for NumPy, which counts with addresses only."""

    __array_interface__: Mapping[str, Any]


def _elements(start: int, shape: Shape) -> Any:
    extents, strides, size = shape
    interface = {"shape": extents, "strides": strides, "typestr": f"|V{size}", "data": (start, False), "version": 3}
    return np.asarray(_Elements(interface))


@lru_cache(1 << 14)
def _meet(one: Shape, other: Shape, distance: int) -> bool:
    """Whether elements of these shapes meet that begin so many bytes apart."""
    low = min(0, distance)
    first, second = _elements(_BEGIN - low, one), _elements(_BEGIN - low + distance, other)
    try:
        return np.shares_memory(first, second, max_work=WORK)  # type: ignore[arg-type]
    except (np.exceptions.TooHardError, OverflowError):
        return True


def _conflicts(accesses: Sequence[Sequence[Touching]]) -> Iterator[set[int]]:
    """Yield the launches before each that must have ended, or others that wait for them.

    Memory is cut into cells at all ends of accesses. A cell knows who touched it since all of it was written last:
    whoever meets one of those before met the writer, too, which waits for them.
    """
    cells = _Cells([access for each in accesses for access in each])
    for number, each in enumerate(accesses):
        found = set[int]()
        for access in each:
            found |= {other for other, former in cells.touched(access) if other != number and access.meets(former)}
        yield found
        for access in each:
            cells.touch(number, access)


class _Cells:
    """Who touched which part of memory; parts that nothing writes know nobody."""

    def __init__(self, accesses: Sequence[Touching]) -> None:
        marks = sorted({mark for access in accesses for mark in (access.start, access.end)})
        self._number = {mark: number for number, mark in enumerate(marks)}
        written = [False] * len(marks)
        for access in accesses:
            if access.written:
                for cell in self._range(access):
                    written[cell] = True
        self._known: list[dict[tuple[int, Touching], bool] | None] = [{} if each else None for each in written]

    def _range(self, access: Touching) -> range:
        return range(self._number[access.start], self._number[access.end])

    def touched(self, access: Touching) -> set[tuple[int, Touching]]:
        """Return who touched memory between the ends of an access in a way that orders the two."""
        found = set[tuple[int, Touching]]()
        for cell in self._range(access):
            known = self._known[cell] or {}
            found.update(known if access.written else (each for each, changed in known.items() if changed))
        return found

    def touch(self, number: int, access: Touching) -> None:
        """Note who touches memory; whoever writes all of a cell stands for all before."""
        whole = access.written and access.dense
        for cell in self._range(access):
            known = self._known[cell]
            if known is None:
                continue
            if whole:
                known.clear()
            known[number, access] = access.written


def _reduced(found: Sequence[set[int]]) -> Waits:
    """Return the least that says the same: nobody waits for whom another does that it waits for."""
    direct: list[tuple[int, ...]] = []
    before: list[int] = []
    for each in found:
        kept: list[int] = []
        all_before = 0
        for number in sorted(each, reverse=True):
            if not all_before >> number & 1:
                kept.append(number)
                all_before |= before[number] | 1 << number
        direct.append(tuple(reversed(kept)))
        before.append(all_before)
    return Waits(tuple(direct), tuple(before))
