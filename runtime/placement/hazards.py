"""Hazards: the earlier launches of a plan that each launch waits for.

Two launches keep their order where both touch an element and one of them writes it. Elements are compared exactly, so
writers of different parts of a concatenation do not wait for each other, unless the comparison takes too long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from attrs import frozen

from ...backends.library import DIALECT
from ...ir import KernelFunction, Storage, TensorType
from ..memory import align_bytes
from ..plan import Plan

#: Launches of a plan with concurrent launches at most: the predecessors of each take a bit for each of them.
MAX_CONCURRENT_LAUNCHES = 4096
#: Steps of NumPy's test whether two sets of elements overlap.
MAX_OVERLAP_WORK = 10_000
#: Address at which every array begins, as no array begins at 0.
_BEGIN = 1 << 20

#: A number of elements along each axis, and their distances in bytes; the bytes of an element.
Shape: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]


@frozen
class MemoryAccess:
    """Elements that a launch accesses.

    It has the first byte, the shape, the first byte after them, and whether some are written.
    """

    start: int
    shape: Shape
    end: int
    written: bool

    @property
    def dense(self) -> bool:
        """Return whether every byte from start to end is accessed."""
        _, strides, size = self.shape
        return not strides or strides == (size,)

    def overlaps(self, other: MemoryAccess) -> bool:
        """Return whether both access an element.

        True where the test takes too long.
        """
        if self.end <= other.start or other.end <= self.start:
            return False
        if self.dense and other.dense:
            return True
        return _overlap(self.shape, other.shape, other.start - self.start)


@frozen
class LaunchDependencies:
    """Dependencies of each launch, in order of launches.

    `direct` has the launches that it waits for, without those implied by others of these; `before` all launches that
    have ended before it begins, as a number with a bit for each.
    """

    direct: tuple[tuple[int, ...], ...]
    before: tuple[int, ...]

    @property
    def is_sequential(self) -> bool:
        """Return whether each launch waits for the previous one."""
        return all(before == (1 << number) - 1 for number, before in enumerate(self.before))

    def critical_path(self, seconds: Sequence[float]) -> float:
        """Return the seconds of the critical path through the launches.

        `seconds` has the time of each launch; all run with enough resources.
        """
        ends: list[float] = []
        for each, taken in zip(self.direct, seconds, strict=True):
            ends.append(taken + max((ends[number] for number in each), default=0.0))
        return max(ends, default=0.0)


def launch_dependencies(plan: Plan, separate_buffers: bool = False) -> LaunchDependencies:
    """Return the dependencies of each launch in a plan's arena.

    With `separate_buffers`, as if no buffers shared memory.
    """
    launches = list(plan.launches())
    begins = (
        _separate_offsets(plan) if separate_buffers else {name: place.offset for name, place in plan.buffers.items()}
    )
    accesses = [list(accesses_of(plan, step, turn, begins)) for step, turn in launches]
    routines = [number for number, (step, _) in enumerate(launches) if _kernel(plan, step).dialect == DIALECT]
    found = [set(each) for each in _conflicts(accesses)]
    for former, latter in pairwise(routines):  # they share the handle of their library, and with it its workspace
        found[latter].add(former)
    return _reduce(found)


def _kernel(plan: Plan, step: int) -> KernelFunction:
    return plan.kernels[plan.steps[step].kernel]


def _separate_offsets(plan: Plan) -> dict[str, int]:
    """Return offsets of buffers that share no memory."""
    begins, end = {}, 0
    for name, place in plan.buffers.items():
        begins[name] = end
        end += align_bytes(place.nbytes)
    return begins


def accesses_of(plan: Plan, step: int, turn: int, begins: Mapping[str, int]) -> Iterator[MemoryAccess]:
    """Yield the accesses of a step at an iteration of its loop.

    Buffers begin at the bytes `begins`.
    """
    called = plan.steps[step]
    kernel = plan.kernels[called.kernel]
    written: dict[str, bool] = {}
    for argument, tensor in zip(kernel.arguments, called.tensors, strict=True):
        if 0 not in kernel.grid:
            written[tensor] = written.get(tensor, False) or argument.written
    for tensor, changed in written.items():
        type_, storage = plan.types[tensor], plan.storages[tensor]
        if 0 not in type_.shape:
            yield _access(type_, storage, begins[storage.buffer], turn, changed)


def _access(type_: TensorType, storage: Storage, begin: int, turn: int, written: bool) -> MemoryAccess:
    size = type_.dtype.size
    start = begin + storage.start(turn) * size
    axes = [(n, stride * size) for n, stride in zip(type_.shape, storage.strides, strict=True) if n > 1 and stride]
    axes.sort(key=lambda axis: axis[1])
    reach = sum((n - 1) * stride for n, stride in axes)
    return MemoryAccess(start, _merge_axes(axes, size), start + reach + size, written)


def _merge_axes(axes: Sequence[tuple[int, int]], size: int) -> Shape:
    """Return axes with contiguous ones merged."""
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
def _overlap(one: Shape, other: Shape, distance: int) -> bool:
    """Return whether elements of two shapes overlap at a distance in bytes."""
    low = min(0, distance)
    first, second = _elements(_BEGIN - low, one), _elements(_BEGIN - low + distance, other)
    try:
        return np.shares_memory(first, second, max_work=MAX_OVERLAP_WORK)  # type: ignore[arg-type]
    except (np.exceptions.TooHardError, OverflowError):
        return True


def _conflicts(accesses: Sequence[Sequence[MemoryAccess]]) -> Iterator[set[int]]:
    """Yield the launches before each that must have ended, or others that wait for them.

    Memory is divided into cells at the ends of all accesses. A cell records its accesses since its last full write:
    an access that conflicts with an earlier one conflicts with that write, too, which waits for it.
    """
    cells = _Cells([access for each in accesses for access in each])
    for number, each in enumerate(accesses):
        found = set[int]()
        for access in each:
            found |= {
                other
                for other, former in cells.conflicting_accesses(access)
                if other != number and access.overlaps(former)
            }
        yield found
        for access in each:
            cells.record(number, access)


class _Cells:
    """Accesses of each part of memory; parts without writes record none."""

    def __init__(self, accesses: Sequence[MemoryAccess]) -> None:
        marks = sorted({mark for access in accesses for mark in (access.start, access.end)})
        self._number = {mark: number for number, mark in enumerate(marks)}
        written = [False] * len(marks)
        for access in accesses:
            if access.written:
                for cell in self._range(access):
                    written[cell] = True
        self._accesses: list[dict[tuple[int, MemoryAccess], bool] | None] = [{} if each else None for each in written]

    def _range(self, access: MemoryAccess) -> range:
        return range(self._number[access.start], self._number[access.end])

    def conflicting_accesses(self, access: MemoryAccess) -> set[tuple[int, MemoryAccess]]:
        """Return the earlier accesses that conflict with an access, by cells."""
        found = set[tuple[int, MemoryAccess]]()
        for cell in self._range(access):
            known = self._accesses[cell] or {}
            found.update(known if access.written else (each for each, changed in known.items() if changed))
        return found

    def record(self, number: int, access: MemoryAccess) -> None:
        """Record an access; a write of a whole cell replaces all before."""
        whole = access.written and access.dense
        for cell in self._range(access):
            known = self._accesses[cell]
            if known is None:
                continue
            if whole:
                known.clear()
            known[number, access] = access.written


def _reduce(found: Sequence[set[int]]) -> LaunchDependencies:
    """Return the transitive reduction of the dependencies."""
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
    return LaunchDependencies(tuple(direct), tuple(before))
